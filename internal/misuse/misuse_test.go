// Package misuse is a corpus of wrong programs, and what their users are told.
//
// Each runs as a job of its own, over every network and with all ranks in one
// process. It must end, soon, with an error or an explanation that names the
// line of the mistake. A few programs are right but look wrong: those must be
// left alone.
package misuse

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/mpiv"
)

// A program is one entry of the corpus.
type program struct {
	name  string // a phrase
	ranks int    // 0 means 2
	check bool   // only Options.Check finds it
	code  int    // of the job's end. 0 means 1, unless it is right.
	hint  bool   // something may be told as a suspicion, and the job goes on
	right bool   // it ends well, and nothing is said
	racy  bool   // the race detector finds it too
	// says is what standard error must match, each. <x> is the file and number
	// of the line that ends in the comment "is x".
	says []string
	// never is what standard error must not match.
	never []string
	run   func(ctx context.Context, world *mpiv.Comm) error
}

var corpus = slices.Concat(waits, collectives, arguments, deaths, lookalikes)

// Which program of the corpus a process of a job is.
const envProgram = "MPIV_MISUSE_PROGRAM"

func TestMain(m *testing.M) {
	if process.Launched() {
		i, _ := strconv.Atoi(os.Getenv(envProgram))
		mpiv.Main(stamped(corpus[i].run))
	}
	flag.Parse()
	flag.Set("test.parallel", "6") // they wait for most of their time
	code := m.Run()
	took.print()
	if err := took.write(*table); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// stamp prints when it was called. The last stamp before the end of a job is
// when its mistake was complete.
func stamp() { fmt.Printf("stamp %d\n", time.Now().UnixNano()) }

// stamped is run, with a stamp when a rank begins and when one finishes.
func stamped(run func(ctx context.Context, world *mpiv.Comm) error) func(ctx context.Context, world *mpiv.Comm) error {
	return func(ctx context.Context, world *mpiv.Comm) error {
		stamp()
		err := run(ctx, world)
		if err == nil {
			stamp()
		}
		return err
	}
}

// A way is how the ranks of a job reach each other.
type way struct {
	name       string
	transport  string
	oneProcess bool
}

var ways = []way{{"shm", "shm", false}, {"tcp", "tcp", false}, {"one process", "shm", true}}

var (
	within = flag.Duration("within", 0, "run one job after another, each to be explained within this `time`")
	table  = flag.String("table", "", "write to this `file` how long each took, as Markdown")
)

// bound is how long an explanation may take on a machine that is busy; -within asks for
// what is meant, a second.
const bound = 30 * time.Second

func TestWrongProgramsAreExplained(t *testing.T) {
	lines := markedLines(t)
	for i, p := range corpus {
		for _, w := range ways {
			t.Run(p.name+"/"+w.name, func(t *testing.T) {
				limit := *within
				if limit == 0 {
					limit = bound
					t.Parallel()
				}
				code, out, errs, explained := runJob(t, i, w)
				if p.right {
					require.Zero(t, code, "it said %s", errs)
				} else {
					require.Equal(t, max(p.code, 1), code, "it said %s", errs)
				}
				if p.right && !p.hint {
					require.Empty(t, errs)
					return
				}
				for _, s := range p.says {
					require.Regexp(t, expected(t, s, lines), errs)
				}
				for _, s := range p.never {
					require.NotRegexp(t, s, errs)
				}
				require.NotContains(t, errs, "fatal error")
				if !p.racy {
					require.NotContains(t, errs, "DATA RACE")
				}
				if p.right {
					return
				}
				d := explained.Sub(lastStamp(t, out))
				t.Logf("explained after %v:\n%s", d.Round(time.Millisecond), errs)
				took.add(p.name, w.name, d, errs)
				require.Less(t, d, limit)
			})
		}
	}
}

// runJob runs a program of the corpus as a job.
func runJob(t *testing.T, i int, w way) (code int, out, errs string, explained time.Time) {
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "mpiv-misuse")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	p := corpus[i]
	ranks := max(p.ranks, 2)
	j := agent.Job{
		Programs: []agent.Program{{Ranks: ranks, Path: self, Env: []string{envProgram + "=" + strconv.Itoa(i), "GORACE=atexit_sleep_ms=0"}}},
		Name:     "wrong", Host: "here", Runtime: dir, Timeout: 2 * time.Minute,
		Options: control.Options{Transports: []string{w.transport}, Check: p.check},
	}
	if w.oneProcess {
		j.RanksPerProcess = ranks
	}
	o, e := told{first: make(chan time.Time, 1)}, told{first: make(chan time.Time, 1)}
	j.Stdout, j.Stderr = &o, &e
	a, err := agent.Start(j)
	require.NoError(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		switch explained = <-e.first; {
		case p.hint && p.right:
			wake(o.String())
		case p.hint:
			agent.Ask(filepath.Join(dir, a.Name()), agent.Question{Op: "abort"}) // or it has ended
		}
	}()
	code = a.Wait()
	e.tell() // if nobody did
	<-over
	return code, o.String(), e.String(), explained
}

// wake sends a signal to the ranks that said, in out, that one wakes them.
func wake(out string) {
	for l := range strings.Lines(out) {
		var pid int
		if n, _ := fmt.Sscanf(l, "waker %d", &pid); n == 1 {
			syscall.Kill(pid, syscall.SIGUSR1)
		}
	}
}

// A told is what a job has written, and when the agent first said something in it.
type told struct {
	first chan time.Time // holds one

	mu  sync.Mutex // guards all
	all bytes.Buffer
}

func (e *told) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("mpivrun: ")) {
		e.tell()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all.Write(p)
}

func (e *told) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all.String()
}

func (e *told) tell() {
	select {
	case e.first <- time.Now():
	default:
	}
}

func lastStamp(t *testing.T, out string) time.Time {
	var last int64
	for l := range strings.Lines(out) {
		if s, ok := strings.CutPrefix(l, "stamp "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			require.NoError(t, err)
			last = max(last, n)
		}
	}
	require.NotZero(t, last, "no stamp in %q", out)
	return time.Unix(0, last)
}

var marker = regexp.MustCompile(`// is (\S+)$`)

// markedLines is where the lines with a marker are: "waits_test.go:12".
func markedLines(t *testing.T) map[string]string {
	at := map[string]string{}
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			if m := marker.FindStringSubmatch(lines.Text()); m != nil {
				require.NotContains(t, at, m[1], "two lines with the same marker")
				at[m[1]] = fmt.Sprintf("%s:%d", name, n)
			}
		}
		require.NoError(t, lines.Err())
		f.Close()
	}
	return at
}

var wanted = regexp.MustCompile(`<[a-z0-9-]+>`)

// expected is the regular expression s with its markers replaced.
func expected(t *testing.T, s string, lines map[string]string) string {
	return wanted.ReplaceAllStringFunc(s, func(m string) string {
		at := lines[strings.Trim(m, "<>")]
		require.NotEmpty(t, at, "no line is marked %s", m)
		return `\b` + regexp.QuoteMeta(at) + `\b`
	})
}

// Every wrong program must say where.
func TestEveryWrongProgramNamesALine(t *testing.T) {
	wrong := 0
	for _, p := range corpus {
		if p.right {
			continue
		}
		wrong++
		if !slices.ContainsFunc(p.says, wanted.MatchString) {
			t.Errorf("%q expects no line", p.name)
		}
	}
	require.GreaterOrEqual(t, wrong, 30)
}
