//go:build linux

package launchtest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var started = regexp.MustCompile(`([0-9.]+) ms: rank \d+: process \d+ of the job started`)

// BenchmarkLaunch is how long a job of one rank on each host takes: "start-ms" until
// the last rank runs, "whole-ms" until mpivrun has ended. With one host there is no
// agent but mpivrun. "far" is mpivlab 300 ms later each time: what a launch waits for,
// without what it computes, so that the depth of the tree can be seen.
func BenchmarkLaunch(b *testing.B) {
	for _, by := range []string{"mpivlab", "far", "ssh"} {
		b.Run(by, func(b *testing.B) {
			s := newSite(b, 32)
			args := s.byLab()
			switch by {
			case "far":
				args = []string{"--launch-agent", s.write("far", "#!/bin/sh\nsleep 0.3\nexec "+s.program("mpivlab")+" exec \"$@\"\n", 0o755)}
			case "ssh":
				s.withSSH(true)
				args = nil
			}
			for n := 1; n <= 32; n *= 2 {
				b.Run(fmt.Sprintf("%dhosts", n), func(b *testing.B) {
					var start, whole float64
					for b.Loop() {
						words := append(append([]string(nil), args...), "-v", "-n", strconv.Itoa(n), "--host", strings.Join(s.Hosts()[:n], ","), "true")
						begun := time.Now()
						r := s.run(words...)
						whole += float64(time.Since(begun)) / 1e6
						require.Zero(b, r.code, "%v", r)
						last, all := 0.0, started.FindAllStringSubmatch(r.errs, -1)
						require.Len(b, all, n)
						for _, m := range all {
							ms, err := strconv.ParseFloat(m[1], 64)
							require.NoError(b, err)
							last = max(last, ms)
						}
						start += last
					}
					b.ReportMetric(start/float64(b.N), "start-ms")
					b.ReportMetric(whole/float64(b.N), "whole-ms")
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}
