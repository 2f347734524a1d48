package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// feed runs a pump for each of streams, writes what say says to them, and
// waits until all is passed on.
func feed(t testing.TB, streams []*stream, say func(w []*os.File)) {
	var pumps sync.WaitGroup
	var ws []*os.File
	for _, s := range streams {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		ws = append(ws, w)
		pumps.Go(func() { s.Pump(r) })
	}
	say(ws)
	for _, w := range ws {
		w.Close()
	}
	pumps.Wait()
}

func TestLinesAreNotMixed(t *testing.T) {
	out := new(buffer)
	sc := new(screen)
	streams := []*stream{{screen: sc, w: out, tag: "[0]<stdout>: "}, {screen: sc, w: out, tag: "[1]<stdout>: "}}
	const lines = 2000
	feed(t, streams, func(w []*os.File) {
		var writers sync.WaitGroup
		for i := range w {
			writers.Go(func() {
				for n := range lines {
					// Most lines come in two pieces.
					fmt.Fprintf(w[i], "line %d ", n)
					fmt.Fprintf(w[i], "of %d\n", i)
				}
			})
		}
		writers.Wait()
	})
	next := [2]int{}
	for line := range strings.Lines(out.String()) {
		var tag, n, by int
		_, err := fmt.Sscanf(line, "[%d]<stdout>: line %d of %d\n", &tag, &n, &by)
		require.NoError(t, err, "%q", line)
		require.Equal(t, tag, by, "%q", line)
		require.Equal(t, next[tag], n, "%q", line)
		next[tag]++
	}
	require.Equal(t, [2]int{lines, lines}, next)
}

func TestUntaggedOutputIsUnchanged(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"lines", "a\nb\n\nc\n"},
		{"a last line without its end", "a\nb"},
		{"a line longer than any buffer", strings.Repeat("x", 5*pieceBytes+17) + "\nend\n"},
		{"no line at all", "\x00\xff\r\n\r"},
		{"nothing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := new(buffer)
			feed(t, []*stream{{screen: new(screen), w: out}}, func(w []*os.File) { io.WriteString(w[0], c.text) })
			require.True(t, out.String() == c.text, "passed on %.100q…, want %.100q…", out.String(), c.text)
		})
	}
}

// A long line goes on in pieces; whoever comes between begins a line.
func TestLongLineIsInterruptedByLines(t *testing.T) {
	out := new(buffer)
	sc := new(screen)
	a, b := &stream{screen: sc, w: out, tag: "a: "}, &stream{screen: sc, w: out, tag: "b: "}
	a.pass([]byte("one "))
	a.pass([]byte("two "))
	b.pass([]byte("hello\n"))
	a.pass([]byte("three\nfour\n"))
	require.Equal(t, "a: one two \nb: hello\na: three\na: four\n", out.String())
}

func TestLongLineComesInLargePieces(t *testing.T) {
	var sizes []int
	s := &stream{screen: new(screen), w: writerFunc(func(p []byte) (int, error) { sizes = append(sizes, len(p)); return len(p), nil })}
	feed(t, []*stream{s}, func(w []*os.File) {
		for range 100 {
			w[0].Write(bytes.Repeat([]byte("x"), 7000))
		}
	})
	for i, n := range sizes[:len(sizes)-1] {
		require.GreaterOrEqual(t, n, pieceBytes, "piece %d of %d", i, len(sizes))
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestQuestionIsPassedOn(t *testing.T) {
	out := new(buffer)
	s := &stream{screen: new(screen), w: out, prompt: true}
	feed(t, []*stream{s}, func(w []*os.File) {
		io.WriteString(w[0], "how many? ")
		out.await(t, "how many? ", 1)
		time.Sleep(2 * promptAfter) // the pump waits on although nothing comes
		io.WriteString(w[0], "thanks\n")
	})
	require.Equal(t, "how many? thanks\n", out.String())
}

func TestPumpEndsThoughOthersHoldThePipe(t *testing.T) {
	out := new(buffer)
	s := &stream{screen: new(screen), w: out}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	io.WriteString(w, "last words")
	s.Leave(r)
	s.Pump(r)
	require.Equal(t, "last words", out.String())
}

func TestProgramLearnsThatNobodyReads(t *testing.T) {
	s := &stream{screen: new(screen), w: writerFunc(func([]byte) (int, error) { return 0, errors.New("closed") })}
	feed(t, []*stream{s}, func(w []*os.File) {
		require.Eventually(t, func() bool { _, err := io.WriteString(w[0], "x\n"); return err != nil }, 20*time.Second, time.Millisecond)
	})
	require.True(t, s.broken.Load())
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"few lines", "a\nb", []string{"a", "b"}},
		{"the last few", "1\n2\n3\n\n4\r\n5\n6\n", []string{"2", "3", "4", "5", "6"}},
		{"a panic among many lines", "x\npanic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n\t/a.go:3\nmain.f()\n\t/a.go:5\nexit status 2\n",
			[]string{"panic: index out of range", "goroutine 1 [running]:", "main.main()", "\t/a.go:3", "main.f()"}},
		{"a long line", strings.Repeat("y", 1000), []string{strings.Repeat("y", tailLineBytes) + " …"}},
		{"very much", strings.Repeat("z\n", 100_000) + "end\n", []string{"z", "z", "z", "z", "end"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole, pieces := new(tail), new(tail)
			whole.add([]byte(c.text))
			for text := c.text; text != ""; {
				n := min(len(text), 999)
				pieces.add([]byte(text[:n]))
				text = text[n:]
				require.LessOrEqual(t, len(pieces.buf), 2*tailBytes)
			}
			require.Equal(t, c.want, whole.lines())
			require.Equal(t, c.want, pieces.lines())
		})
	}
}

func TestOutputOfAJob(t *testing.T) {
	t.Parallel()
	const script = "echo out $MPIV_PROCESS; echo err $MPIV_PROCESS >&2"
	t.Run("tagged", func(t *testing.T) {
		j, out, errs := shell(t, 4, script)
		j.RanksPerProcess, j.Tag = 3, true
		require.Zero(t, runJob(t, j))
		require.Contains(t, out.String(), "[0-2]<stdout>: out 0\n")
		require.Contains(t, out.String(), "[3]<stdout>: out 1\n")
		require.Contains(t, errs.String(), "[3]<stderr>: err 1\n")
	})
	t.Run("stamped", func(t *testing.T) {
		j, out, _ := shell(t, 1, script)
		j.Timestamp = true
		require.Zero(t, runJob(t, j))
		require.Regexp(t, regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6} out 0\n$`), out.String())
	})
	t.Run("in files", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new")
		j, out, errs := shell(t, 4, script+"; test $MPIV_PROCESS = 0 && exit; until test -s $DIR/rank.0-2.stderr; do sleep 0.01; done; exit 3")
		j.Programs[0].Env = []string{"DIR=" + dir}
		j.RanksPerProcess, j.OutputDir = 3, dir
		require.Equal(t, 3, runJob(t, j))
		require.Empty(t, out.String())
		require.Contains(t, errs.String(), "its last lines:\n    err 1\n")
		for name, want := range map[string]string{"rank.0-2.stdout": "out 0\n", "rank.0-2.stderr": "err 0\n", "rank.3.stdout": "out 1\n", "rank.3.stderr": "err 1\n"} {
			got, err := os.ReadFile(filepath.Join(j.OutputDir, name))
			require.NoError(t, err)
			require.Equal(t, want, string(got), name)
		}
	})
	t.Run("what a process left behind does not hold it up", func(t *testing.T) {
		j, out, _ := shell(t, 1, "sleep 60 & echo done")
		began := time.Now()
		require.Zero(t, runJob(t, j))
		require.Equal(t, "done\n", out.String())
		require.Less(t, time.Since(began), 30*time.Second)
	})
	t.Run("the last words are passed on however slow the screen is", func(t *testing.T) {
		j, _, _ := shell(t, 2, "seq 1 20000")
		var got bytes.Buffer
		j.Stdout = writerFunc(func(p []byte) (int, error) { time.Sleep(2 * drainTime); return got.Write(p) })
		require.Zero(t, runJob(t, j))
		require.Equal(t, 40000, bytes.Count(got.Bytes(), []byte{'\n'}))
	})
}

func TestStandardInput(t *testing.T) {
	for _, c := range []struct {
		rank int
		want string
	}{{0, "0:hello 1: "}, {1, "0: 1:hello "}, {-1, "0: 1: "}} {
		j, _, _ := shell(t, 2, "printf '%s:%s ' $MPIV_PROCESS $(cat) > $OUT.$MPIV_PROCESS")
		file := filepath.Join(t.TempDir(), "out")
		j.Programs[0].Env = []string{"OUT=" + file}
		r, w, err := os.Pipe()
		require.NoError(t, err)
		io.WriteString(w, "hello\n")
		w.Close()
		j.Stdin, j.StdinRank = r, c.rank
		if c.rank < 0 {
			j.Stdin = nil
		}
		require.Zero(t, runJob(t, j))
		r.Close()
		zero, _ := os.ReadFile(file + ".0")
		one, _ := os.ReadFile(file + ".1")
		require.Equal(t, c.want, string(zero)+string(one))
	}
}

func BenchmarkOutput(b *testing.B) {
	line := []byte("line 4711 of some length that is usual for what programs print\n")
	block := bytes.Repeat(line, 1000)
	for _, tag := range []string{"", "[12]<stdout>: "} {
		b.Run("tag="+fmt.Sprint(tag != ""), func(b *testing.B) {
			b.SetBytes(int64(len(block)))
			b.ReportAllocs()
			s := &stream{screen: new(screen), w: io.Discard, tag: tag}
			feed(b, []*stream{s}, func(w []*os.File) {
				for b.Loop() {
					w[0].Write(block)
				}
			})
		})
	}
}

// What a job prints cannot be written, as the disk is full: it ends, and says so, however its ranks take it.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"they end well":    "echo hi",
		"they are killed":  "while echo hi; do :; done",
		"they do not mind": "trap '' PIPE; echo hi; sleep 60",
	} {
		t.Run(name, func(t *testing.T) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			require.NoError(t, err)
			defer full.Close()
			j, _, errs := jobOf(t, 2, "turns")
			j.Stdout, j.Programs = full, []Program{{Ranks: 2, Path: "sh", Args: []string{"-c", script}}}
			a, err := Start(j)
			require.NoError(t, err)
			require.Equal(t, 1, a.Wait())
			require.Regexp(t, `^mpivrun: the output of rank \d cannot be written: write /dev/full: no space left on device\n`, errs.String())
		})
	}
}

func TestNamesOfProcesses(t *testing.T) {
	one, four, spare := &process{ranks: []int{3}}, &process{ranks: []int{4, 5, 6, 7}}, &process{index: 8}
	for want, ps := range map[string][]*process{
		"": nil, "rank 3": {one}, "ranks 4-7": {four}, "ranks 3, 4-7": {one, four}, "a spare process": {spare},
		"rank 3 and a spare process": {spare, one}, "ranks 3, 4-7 and 2 spare processes": {one, spare, four, spare},
	} {
		require.Equal(t, want, names(ps))
	}
	gone := &process{index: 9, judged: true}
	a := &Agent{processes: []*process{gone, one, gone, spare}}
	require.Equal(t, "rank 3 and a spare process", a.namesOf(&host{processes: []int{0, 1, 2, 3}}), "those that have ended are not lost with a host")
	require.Empty(t, a.namesOf(&host{processes: []int{0}}))
}

// What goes to another host is cut at the ends of lines, wherever the window is full: lines of others come in between.
func TestOutputGoesToTheHeadByLines(t *testing.T) {
	d := &deputy{books: newBooks()}
	d.books.outlive = true // it keeps what it sends
	of := stdio{process: 1}
	u := upward{d, of, newWindow()}
	text := strings.Repeat("a line of 19 bytes\n", 2*control.OutputWindow/19)
	wrote := make(chan error, 1)
	go func() {
		_, err := u.Write([]byte(text))
		wrote <- err
	}()
	for done := false; !done; {
		select {
		case err := <-wrote:
			require.NoError(t, err)
			done = true
		default:
			u.window.give(1000, false)
		}
	}
	var got strings.Builder
	for _, m := range d.books.untaken[of] {
		require.Equal(t, byte('\n'), m.Data[len(m.Data)-1], "a piece ends within a line")
		got.Write(m.Data)
	}
	require.Equal(t, text, got.String())
}
