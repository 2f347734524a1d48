package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
)

// A watched is a job whose events come.
type watched struct {
	mu    sync.Mutex // guards what follows
	state events.State
}

func (w *watched) apply(e events.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Apply(e)
	return nil
}

// top shows a job while it runs: on a terminal a screen, elsewhere a line each
// second.
func top(ctx context.Context, stdin, stdout *os.File, args []string) error {
	name, asJSON, err := view("top", args)
	if err != nil {
		return err
	}
	if asJSON {
		return usage("mpivrun top is for people; mpivrun events has the same for programs")
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &watched{}
	ended := make(chan error, 1)
	go func() { ended <- agent.Watch(ctx, j.Dir, w.apply) }()
	if isTerminal(stdin) && isTerminal(stdout) {
		if err := live(ctx, w, stdin, stdout, ended); err != nil {
			return err
		}
	} else {
		err = lines(ctx, w, stdout, ended)
	}
	if err == nil && ctx.Err() == nil {
		w.mu.Lock()
		farewell(stdout, &w.state)
		w.mu.Unlock()
	}
	return err
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// farewell says how the job has ended, if it has.
func farewell(w io.Writer, s *events.State) {
	if s.Ended == nil {
		return
	}
	text := fmt.Sprintf("job %s has ended after %s with exit code %d", s.Job.Name, span(time.Duration(s.Ended.Lived)), s.Ended.Code)
	if s.Verdict != nil && s.Verdict.Text != "" {
		text += ": " + strings.TrimRight(s.Verdict.Text, "\n")
	}
	fmt.Fprintln(w, text)
}

// lines prints a line each second until the job ends.
func lines(ctx context.Context, w *watched, out io.Writer, ended <-chan error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.mu.Lock()
			line := oneLine(&w.state, time.Now())
			w.mu.Unlock()
			if line == "" {
				continue
			}
			if _, err := fmt.Fprintln(out, line); errors.Is(err, syscall.EPIPE) {
				return nil // who read it has had enough
			} else if err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// oneLine is the job in a line.
func oneLine(s *events.State, now time.Time) string {
	if s.Job == nil {
		return ""
	}
	text := fmt.Sprintf("%s %s %s %s: %s", now.Format("15:04:05"), s.Job.Name, s.Phase, span(now.Sub(s.Began)), summary(s))
	longest, who := time.Duration(0), ""
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, r := range p.Ranks {
			if k := p.Rank(r); k != nil && !p.Finished[r] && p.Exit == "" && time.Duration(k.Waits) > longest {
				longest, who = time.Duration(k.Waits), fmt.Sprintf("; rank %d %s", r, doing(p, r))
			}
		}
	}
	return text + who
}

// live shows the job on a terminal until it ends, or q is pressed.
func live(ctx context.Context, w *watched, stdin, stdout *os.File, ended <-chan error) error {
	m := &model{w: w, ended: ended}
	_, err := tea.NewProgram(m, tea.WithInput(stdin), tea.WithOutput(stdout), tea.WithContext(ctx)).Run()
	if err != nil && ctx.Err() == nil {
		return err
	}
	return m.err
}

// A model is top as bubbletea runs it.
type model struct {
	w      *watched
	ended  <-chan error
	screen screen
	err    error
}

// A drawMsg has the screen drawn again.
type drawMsg time.Time

// A overMsg says that there is no more to see.
type overMsg struct{ err error }

const drawEvery = 250 * time.Millisecond

func (m *model) Init() tea.Cmd { return tea.Batch(m.draw(), m.over) }

func (m *model) draw() tea.Cmd {
	return tea.Tick(drawEvery, func(t time.Time) tea.Msg { return drawMsg(t) })
}

func (m *model) over() tea.Msg { return overMsg{<-m.ended} }

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.screen.width, m.screen.height = msg.Width, msg.Height
	case drawMsg:
		return m, m.draw()
	case overMsg:
		m.err = msg.err
		return m, tea.Quit
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

func (m *model) key(key string) tea.Cmd {
	v := &m.screen
	switch key {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "s":
		v.order = (v.order + 1) % orders
		v.skip = 0
	case "1", "2", "3", "4", "5":
		v.page, v.skip = page(key[0]-'1'), 0
	case "tab":
		v.page, v.skip = (v.page+1)%pages, 0
	case "down", "j":
		v.skip = min(v.skip+1, m.most())
	case "up", "k":
		v.skip = max(v.skip-1, 0)
	case "pgdown", "space":
		v.skip = min(v.skip+v.height/2, m.most())
	case "pgup":
		v.skip = max(v.skip-v.height/2, 0)
	case "home", "g":
		v.skip = 0
	}
	return nil
}

// most is more rows than can be skipped.
func (m *model) most() int {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	switch s := &m.w.state; {
	case s.Job == nil:
		return 0
	case m.screen.page == pageLinks:
		n := 0
		for i := range s.Processes {
			if r := s.Processes[i].Reading; r != nil {
				n += len(r.Links)
			}
		}
		return n
	default:
		return max(s.Job.Ranks, len(s.Processes)) + len(s.Hosts)
	}
}

func (m *model) View() tea.View {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	v := tea.NewView("")
	if m.w.state.Job != nil && m.screen.width > 0 {
		v.Content = strings.Join(m.screen.lines(&m.w.state, time.Now()), "\n")
	}
	v.AltScreen = true
	v.WindowTitle = "mpivrun top"
	return v
}
