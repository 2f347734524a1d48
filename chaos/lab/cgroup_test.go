//go:build linux

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestHierarchyIsFoundInBothVersions(t *testing.T) {
	const (
		proc   = "21 1 0:20 / /proc rw,relatime - proc proc rw\n"
		cpu    = "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
		cpuset = "31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
		part   = "30 25 0:26 /docker/1 /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
		v2     = "32 25 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
		own    = "3:cpuset:/other\n2:cpu,cpuacct:/docker/1/a\n1:cpu:/docker/1/b\n0::/user.slice/session.scope\n"
	)
	for name, c := range map[string]struct {
		mounts string
		want   *hierarchy
	}{
		"first version":            {proc + cpuset + cpu, &hierarchy{mount: "/sys/fs/cgroup/cpu,cpuacct", own: "docker/1/a"}},
		"first, of a container":    {proc + part, &hierarchy{mount: "/sys/fs/cgroup/cpu", own: "a"}},
		"second version":           {proc + v2, &hierarchy{v2: true, mount: "/sys/fs/cgroup", own: "user.slice/session.scope"}},
		"both, cpu with the first": {v2 + cpu, &hierarchy{mount: "/sys/fs/cgroup/cpu,cpuacct", own: "docker/1/a"}},
		"none":                     {proc + "broken\n - \n" + cpuset, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := parseHierarchy(c.mounts, own)
			if c.want == nil {
				require.ErrorIs(t, err, ErrUnavailable)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, h)
		})
	}
}

// tree makes files of a control group tree of the second version.
func tree(t *testing.T, controllers map[string]string) *hierarchy {
	t.Helper()
	h := &hierarchy{v2: true, mount: t.TempDir(), own: "user/app/session"}
	require.NoError(t, os.MkdirAll(filepath.Join(h.mount, h.own), 0o755))
	for dir, on := range controllers {
		require.NoError(t, os.WriteFile(filepath.Join(h.mount, dir, "cgroup.subtree_control"), []byte(on), 0o644))
	}
	return h
}

func TestSecondVersionLimitsInASiblingOfOurGroup(t *testing.T) {
	h := tree(t, map[string]string{".": "cpuset cpu io\n", "user": "cpu memory\n", "user/app": "memory\n", "user/app/session": "cpu\n"})
	require.Equal(t, []string{filepath.Join(h.mount, "user"), h.mount}, h.parents(), "not our own, nor one without cpu")

	c := &cgroups{name: "mpivlab-test"}
	require.NoError(t, c.makeInLocked(h))
	require.Equal(t, filepath.Join(h.mount, "user/mpivlab-test"), c.dir)
	n := &node{name: "X", ns: &namespace{id: "none"}}
	for _, step := range []struct {
		cores float64
		want  string
	}{{0.25, "25000 100000"}, {1.5, "150000 100000"}, {0, "max 100000"}} {
		require.NoError(t, c.limit(n, step.cores))
		got, err := os.ReadFile(filepath.Join(c.dir, "X", "cpu.max"))
		require.NoError(t, err)
		require.Equal(t, step.want, string(got))
	}
	on, err := os.ReadFile(filepath.Join(c.dir, "cgroup.subtree_control"))
	require.NoError(t, err)
	require.Equal(t, "+cpu", string(on))

	h = tree(t, map[string]string{".": "io\n"})
	require.ErrorIs(t, (&cgroups{name: "x"}).makeInLocked(h), ErrUnavailable)
}

// The kernel's part of the second version needs no cpu controller to be tried.
func TestSecondVersionStartsInTheGroup(t *testing.T) {
	var mount string
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			mount = dir
		}
	}
	dir := filepath.Join(mount, "mpivlab-start-test")
	if err := os.Mkdir(dir, 0o755); mount == "" || err != nil {
		t.Skip("no control groups of the second version may be made")
	}
	defer os.Remove(dir)
	n := &node{name: "X"}
	c := &cgroups{tree: &hierarchy{v2: true}, dir: dir, hosts: map[*node]string{n: dir}}
	out, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	cmd := exec.Command("cat", "/proc/self/cgroup")
	cmd.Stdout = out
	require.NoError(t, c.start(n, cmd))
	require.NoError(t, cmd.Wait())
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	require.Contains(t, string(text), "0::/mpivlab-start-test\n")
}
