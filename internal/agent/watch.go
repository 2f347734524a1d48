package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

// Watch calls f with the events of the job in dir: those that tell how it stands,
// then each as it happens. It returns nil when the job has ended or ctx has, and
// else the error of f or of the connection. On a host that is not the job's first
// it asks each second, and of what happens in between f hears the last of a kind
// only.
func Watch(ctx context.Context, dir string, f func(events.Event) error) error {
	c, err := dialJob(dir)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(questionTime))
	if err := json.NewEncoder(c).Encode(Question{Op: "watch"}); err != nil {
		return fmt.Errorf("watch job %s: %w", filepath.Base(dir), err)
	}
	in := bufio.NewReaderSize(c, 64<<10)
	var ans Answer
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ans)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("job %s did not answer: %w", filepath.Base(dir), err)
	case ans.Error != "":
		return errors.New(ans.Error)
	case ans.Poll:
		c.Close()
		return poll(ctx, dir, f)
	}
	c.SetDeadline(time.Time{})
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch job %s: %w", filepath.Base(dir), err)
		}
		e, err := events.Parse(line)
		if err == nil {
			err = f(e)
		}
		if err != nil {
			return err
		}
	}
}

// poll is Watch by asking.
func poll(ctx context.Context, dir string, f func(events.Event) error) error {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for last, asked := uint64(0), 0; ; asked++ {
		ans, err := Ask(dir, Question{Op: "ps"})
		if err != nil && asked == 0 {
			return err
		}
		if _, gone := os.Stat(dir); err != nil && errors.Is(gone, os.ErrNotExist) {
			return nil // it has ended
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			return err // the agent of this host has died
		} // otherwise there may be another head soon
		for _, e := range ans.Events {
			if e.Seq <= last {
				continue
			}
			last = e.Seq
			if err := f(e); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// State is how the job stands by the answer to "ps"; nil if it does not say.
func (ans Answer) State() *events.State {
	s := new(events.State)
	for _, e := range ans.Events {
		s.Apply(e)
	}
	if s.Job == nil {
		return nil
	}
	return s
}
