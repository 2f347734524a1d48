// Package seeds runs tests from seeds: as many as a test wants, or -seeds says.
package seeds

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

var (
	count = flag.Int("seeds", 0, "how many seeds to run. Zero means as many as each test wants, with -short a tenth.")
	first = flag.Uint64("seed", 1, "the first seed")
)

// progressEvery is how often a test that is run with -v says how far it is.
const progressEvery = 30 * time.Second

// Each calls f with one seed after another, usual of them, or with -short a tenth, unless
// -seeds says otherwise, and returns how many there were. A test that checks what has happened in all of them
// does so only if there were as many as usual. A failure is to name [Replay].
func Each(t *testing.T, usual int, f func(seed uint64)) int {
	t.Helper()
	n := *count
	if n <= 0 {
		n = usual
		if testing.Short() {
			n = max(1, usual/10)
		}
	}
	began := time.Now()
	told := began
	for i := range n {
		f(*first + uint64(i))
		if now := time.Now(); testing.Verbose() && now.Sub(told) >= progressEvery {
			told = now
			took := now.Sub(began)
			left := time.Duration(float64(took) / float64(i+1) * float64(n-i-1))
			fmt.Fprintf(os.Stderr, "%d of %d seeds in %v, about %v left\n", i+1, n, took.Round(time.Second), left.Round(time.Second))
		}
	}
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "%d seeds in %v\n", n, time.Since(began).Round(time.Millisecond))
	}
	return n
}

// Replay is the command that runs test of pkg, a directory such as ./leader, from seed
// alone.
func Replay(pkg, test string, seed uint64) string {
	return fmt.Sprintf("replay: go test %s -run %s -seed %d -seeds 1", pkg, test, seed)
}
