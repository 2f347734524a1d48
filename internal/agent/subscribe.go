package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/events"
)

const (
	subscriberQueue = 4096                   // events that may wait for one who reads
	flushEvery      = 100 * time.Millisecond // of what is written to a file, at least
	parting         = time.Second            // for who is subscribed no longer to take what is due
)

// A subscriber gets the job's events. Who does not take them as fast as they come,
// with a queue between, is one no longer: the job does not wait.
type subscriber struct {
	queue chan events.Event // closed by the loop, after the last
	after uint64            // of it come events with a higher number; the others it has
	cut   bool              // it was too slow; set before queue is closed
	out   interface {
		io.Writer
		SetWriteDeadline(time.Time) error
	}
}

// offer queues e; false if there is no room.
func (s *subscriber) offer(e events.Event) bool {
	select {
	case s.queue <- e:
		return true
	default:
		return false
	}
}

// subscribe has out written to by run, which the caller calls. Run by the loop.
func (a *Agent) subscribe(s *subscriber) (first []events.Event) {
	s.queue = make(chan events.Event, subscriberQueue)
	if a.news.subscribers == nil {
		a.news.subscribers = map[*subscriber]bool{}
	}
	a.news.subscribers[s] = true
	s.after = a.news.state.Seq
	a.lookAt()
	return a.standing()
}

// unsubscribe ends s. Twice is harmless. Run by the loop.
func (a *Agent) unsubscribe(s *subscriber, cut bool) {
	if !a.news.subscribers[s] {
		return
	}
	delete(a.news.subscribers, s)
	if s.cut = cut; cut {
		a.news.cuts++
	}
	s.out.SetWriteDeadline(time.Now().Add(parting)) // a file has none
	close(s.queue)
	a.lookAt()
}

// standing is how the job stands, as events.
func (a *Agent) standing() []events.Event {
	all := append(a.news.state.Events(), a.news.state.Readings(time.Now().Add(-3*readEvery))...)
	slices.SortFunc(all, func(x, y events.Event) int {
		if x.Seq < y.Seq {
			return -1
		}
		return 1
	})
	return all
}

// run writes first, and then what comes, until the queue is closed. After an error
// it takes what comes and does nothing.
func (s *subscriber) run(first []events.Event) (err error) {
	w := bufio.NewWriterSize(s.out, 64<<10)
	last, flushed := uint64(1), time.Now()
	write := func(e events.Event) {
		last = e.Seq
		if err == nil {
			_, err = w.Write(events.Append(nil, e))
		}
	}
	flush := func() {
		if err == nil {
			err = w.Flush()
		}
		flushed = time.Now()
	}
	for _, e := range first {
		write(e)
	}
	flush()
	for e := range s.queue {
		write(e)
		if len(s.queue) == 0 || time.Since(flushed) > flushEvery {
			flush()
		}
	}
	if s.cut {
		write(events.Event{V: events.Version, Seq: last, Time: time.Now().UTC().Round(0), Kind: events.StreamCut,
			Text: fmt.Sprintf("this stream ends: what reads it was more than %d events behind", subscriberQueue)})
	}
	flush()
	return err
}

// serveWatch sends the job's events to c until one of the two ends.
func (a *Agent) serveWatch(c *net.UnixConn) {
	c.SetDeadline(time.Time{}) // the loop sets one when it ends this
	s := &subscriber{out: c}
	first := make(chan []events.Event, 1)
	a.post(func() { first <- a.subscribe(s) })
	var standing []events.Event
	select {
	case standing = <-first:
	case <-a.done:
		select {
		case standing = <-first: // the last thing that the loop did
		default:
			json.NewEncoder(c).Encode(Answer{Error: "the job has ended"})
			return
		}
	}
	var gone sync.WaitGroup
	gone.Go(func() {
		io.Copy(io.Discard, c) // ends when the other end closes it, or the crew does
		a.post(func() { a.unsubscribe(s, false) })
	})
	if json.NewEncoder(c).Encode(Answer{}) == nil {
		s.run(standing)
	}
	c.CloseRead()
	gone.Wait()
}

// openEvents opens the file that the job's events go to.
func openEvents(path string) (*os.File, error) {
	// A pipe that nobody reads is an error, and one that is not read fast enough
	// holds up nobody.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, fmt.Errorf("open the file for events: %w", err)
	}
	return f, nil
}

// writeEvents has the job's events written to the file that was opened.
func (a *Agent) writeEvents() {
	s := &subscriber{out: a.eventsFile}
	first := a.subscribe(s)
	a.writers.Go(func() {
		err := s.run(first)
		if closed := a.eventsFile.Close(); err == nil {
			err = closed
		}
		if err != nil {
			a.remark("events could not be written, and end somewhere: %v", err)
		}
	})
}
