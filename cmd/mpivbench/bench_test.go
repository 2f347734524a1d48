package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// benchInside runs a command line in a world of ranks inside this process, and
// returns what rank 0 printed.
func benchInside(t *testing.T, ranks int, line string) (string, error) {
	t.Helper()
	o, err := parseOptions(strings.Fields(line))
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var out bytes.Buffer
	err = mpiv.Run(ctx, ranks, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		return o.bench(ctx, world, time.Millisecond, &out)
	})
	return out.String(), err
}

// A row is a line of output that is no comment, read as mpivpeers does.
type row struct {
	size    string
	figures []float64
}

func rows(t *testing.T, of *test, output string) []row {
	t.Helper()
	var all []row
	for line := range strings.Lines(output) {
		words := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		var r row
		if of.sized() {
			require.NotEmpty(t, words)
			r.size, words = words[0], words[1:]
		}
		require.Len(t, words, len(of.columns), "line %q", line)
		for _, word := range words {
			figure, err := strconv.ParseFloat(word, 64)
			require.NoError(t, err)
			r.figures = append(r.figures, figure)
		}
		all = append(all, r)
	}
	return all
}

func TestEveryTestPrintsAFigureForEachSize(t *testing.T) {
	for _, of := range tests {
		for _, ranks := range []int{1, 2, 3, 4} {
			if of.name == "move" || of.name == "save" { // there is no agent
				continue
			}
			if of.worlds.check(ranks) != nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", of.name, ranks), func(t *testing.T) {
				sizes := []string{"4", "20000", "12"} // up and down, and beyond large
				out, err := benchInside(t, ranks, of.name+" -s "+strings.Join(sizes, ",")+" -i 20 -x 3 -w 5 -t 3")
				require.NoError(t, err)
				require.True(t, strings.HasPrefix(out, "# OSU-style MPI "+of.title+" Test\n"), out)
				got := rows(t, &of, out)
				if of.run == nil {
					require.Empty(t, got)
					require.Contains(t, out, "1.000 ms")
					return
				}
				if !of.sized() {
					sizes = []string{""}
				}
				require.Len(t, got, len(sizes))
				for i, r := range got {
					require.Equal(t, sizes[i], r.size)
					for _, figure := range r.figures {
						require.True(t, figure > 0 && figure < 1e10, "figure %v in\n%s", figure, out)
					}
				}
			})
		}
	}
}

func TestNothingAtAllCanBeSent(t *testing.T) {
	out, err := benchInside(t, 2, "latency -s 0 -i 10")
	require.NoError(t, err)
	require.Len(t, rows(t, find("latency"), out), 1)
}

func TestMessageRateIsBandwidthBySize(t *testing.T) {
	out, err := benchInside(t, 4, "mbw_mr -s 1000 -i 20 -x 0")
	require.NoError(t, err)
	figures := rows(t, find("mbw_mr"), out)[0].figures
	require.InEpsilon(t, figures[1]*1000/1e6, figures[0], 1e-4)
}

func TestWorldsThatDoNotFit(t *testing.T) {
	for line, ranks := range map[string]int{"latency": 3, "latency_mt": 1, "bw": 4, "bibw": 1, "mbw_mr": 3} {
		out, err := benchInside(t, ranks, line)
		exit, ok := errors.AsType[*mpiv.ExitError](err)
		require.True(t, ok, "%s on %d ranks: %v", line, ranks, err)
		require.Equal(t, codeUsage, exit.Code)
		require.Empty(t, out)
	}
}

func TestAnswererSharesAddUp(t *testing.T) {
	for _, threads := range []string{"1", "3", "7"} { // 7: more than messages
		_, err := benchInside(t, 2, "latency_mt -s 8 -i 4 -x 1 -t "+threads)
		require.NoError(t, err)
	}
}

func TestOutputIsThatOfTheContract(t *testing.T) {
	var out strings.Builder
	require.NoError(t, find("latency").printHead(&out))
	require.NoError(t, find("latency").printLine(&out, 0, []float64{0.3129}))
	require.NoError(t, find("mbw_mr").printHead(&out))
	require.NoError(t, find("mbw_mr").printLine(&out, 4194304, []float64{19876.54321, 4738.9}))
	require.NoError(t, find("barrier").printHead(&out))
	require.NoError(t, find("barrier").printLine(&out, 0, []float64{0.34}))
	require.NoError(t, find("init").printHead(&out))
	require.Equal(t, ""+
		"# OSU-style MPI Latency Test\n"+
		"# Size            Latency (us)\n"+
		"0                       0.3129\n"+
		"# OSU-style MPI Multiple Bandwidth / Message Rate Test\n"+
		"# Size                    MB/s          Messages/s\n"+
		"4194304             19876.5432           4738.9000\n"+
		"# OSU-style MPI Barrier Latency Test\n"+
		"# Avg Latency(us)\n"+
		"                        0.3400\n"+
		"# OSU-style MPI Init Test\n", out.String())
}

func TestBuffersStartAtAPage(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 100001} {
		b := aligned(n)
		require.Len(t, b, n)
		require.Equal(t, n, cap(b))
		require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(os.Getpagesize()))
	}
}

// TestLoopsAllocateNothing: so that the figures are those of the messages.
func TestLoopsAllocateNothing(t *testing.T) {
	for _, name := range []string{"latency", "bw", "bibw", "barrier", "allreduce"} {
		few, many := mallocs(t, name+" -s 8 -w 8 -i 10"), mallocs(t, name+" -s 8 -w 8 -i 2010")
		if more := int64(many) - int64(few); more > 1000 {
			t.Errorf("%s: 2000 iterations more made %d allocations more", name, more)
		}
	}
}

// mallocs is how many allocations a command line makes.
func mallocs(t *testing.T, line string) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := benchInside(t, 2, line)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	return after.Mallocs - before.Mallocs
}
