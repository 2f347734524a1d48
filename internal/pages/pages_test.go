package pages

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// What a control group around this process leaves counts as well as what the host has.
func TestAvailableWithinControlGroups(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const host = "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n"
	for _, c := range []struct {
		name  string
		files fstest.MapFS
		n     int64
		known bool
	}{
		{"nothing is known", fstest.MapFS{}, 0, false},
		{"no groups", fstest.MapFS{"proc/meminfo": file(host)}, 1000 << 10, true},
		{"version 2, of a group around", fstest.MapFS{
			"proc/meminfo": file(host), "proc/self/cgroup": file("0::/job/step\n"),
			"sys/fs/cgroup/job/step/memory.max": file("max\n"), "sys/fs/cgroup/job/step/memory.current": file("70\n"),
			"sys/fs/cgroup/job/memory.max": file("100\n"), "sys/fs/cgroup/job/memory.current": file("70\n"),
			"sys/fs/cgroup/job/memory.stat": file("anon 50\ninactive_file 12\nactive_file 3\n"),
		}, 45, true},
		{"version 1, of a container, which sees its own as the first", fstest.MapFS{
			"proc/meminfo": file(host), "proc/self/cgroup": file("5:cpu,cpuacct:/\n4:memory:/docker/x\n0::/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("100\n"), "sys/fs/cgroup/memory/memory.usage_in_bytes": file("130\n"),
			"sys/fs/cgroup/memory/memory.stat": file("inactive_file 1\ntotal_inactive_file 10\n"),
		}, 0, true},
		{"without a limit", fstest.MapFS{
			"proc/meminfo": file(host), "proc/self/cgroup": file("4:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"), "sys/fs/cgroup/memory/memory.usage_in_bytes": file("130\n"),
		}, 1000 << 10, true},
	} {
		n, known := available(c.files)
		require.Equal(t, c.n, n, c.name)
		require.Equal(t, c.known, known, c.name)
	}
}
