//go:build linux

// Package launchtest starts real jobs with the real mpivrun on several hosts of
// a lab: by ssh with a real sshd on each, by a real Slurm, and by mpivlab exec.
// What is missing here for that is said by the tests that skip.
package launchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

func TestMain(m *testing.M) { lab.Main(tidy{m}) }

// tidy removes what was built when the tests have run.
type tidy struct{ m *testing.M }

func (t tidy) Run() int {
	defer func() {
		if built.dir != "" {
			os.RemoveAll(built.dir)
		}
	}()
	return t.m.Run()
}

// built is the directory with mpivrun, mpivlab and the examples, made once.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// programs is the directory where mpivrun, mpivlab and the examples are.
func programs(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "mpivbin-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", built.dir+"/", "./cmd/mpivrun", "./cmd/mpivlab", "./examples/...")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w: %s", err, out)
		}
	})
	require.NoError(t, built.err)
	return built.dir
}

// A site is a lab in which mpivrun is started on the first host.
type site struct {
	*lab.Lab
	t     testing.TB
	bin   string           // programs
	dir   string           // for this test
	env   []string         // of mpivrun
	quiet map[string][]int // processes of each host that are no job's
	alien string           // no job's either: what begins so. Empty: nothing
}

// newSite makes a site of hosts X, Y, Z and so on: n of them.
func newSite(t testing.TB, n int) *site {
	o := lab.Options{Networks: []lab.Network{{Name: "lan"}}}
	for _, name := range hostNames(n) {
		o.Hosts = append(o.Hosts, lab.Host{Name: name})
	}
	return newSiteOf(t, o)
}

func hostNames(n int) []string {
	names := []string{"X", "Y", "Z", "W"}
	for i := len(names); i < n; i++ {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	return names[:n]
}

func newSiteOf(t testing.TB, o lab.Options) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("whole jobs over several hosts, of programs that are built without the race detector: -short leaves them out")
	}
	s := &site{t: t, bin: programs(t), Lab: lab.ForTest(t, o), quiet: map[string][]int{}}
	var err error
	s.dir, err = os.MkdirTemp("", "mpivsite-") // short: sockets are in it
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	require.NoError(t, os.Chmod(s.dir, 0o755))
	require.NoError(t, os.Mkdir(s.path("run"), 0o700))
	s.env = []string{"XDG_RUNTIME_DIR=" + s.path("run")}
	return s
}

func (s *site) path(name string) string    { return filepath.Join(s.dir, name) }
func (s *site) program(name string) string { return filepath.Join(s.bin, name) }

// write makes a file of the site.
func (s *site) write(name, text string, mode os.FileMode) string {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.path(name), []byte(text), mode))
	require.NoError(s.t, os.Chmod(s.path(name), mode))
	return s.path(name)
}

// byLab is the options that start agents with mpivlab exec.
func (s *site) byLab() []string { return []string{"--launch-agent", s.program("mpivlab") + " exec"} }

// neighboursAskedOften has the hosts ask for the addresses of their neighbours every 50 ms until they are told, instead of every second. A host
// whose cable was away asks anew; where that is lost in a cut nothing at all is sent for longer than any silence.
func (s *site) neighboursAskedOften() {
	s.t.Helper()
	for _, h := range s.Hosts() {
		out, err := s.Command(s.t.Context(), h, "sh", "-c", "echo 50 >/proc/sys/net/ipv4/neigh/lan/retrans_time_ms").CombinedOutput()
		require.NoError(s.t, err, "%s", out)
	}
}

// settled notes which processes the hosts have before any job.
func (s *site) settled() {
	for _, h := range s.Hosts() {
		pids, err := s.Pids(h)
		require.NoError(s.t, err)
		s.quiet[h] = pids
	}
}

// left is the processes of a host that were not there before.
func (s *site) left(host string) []string {
	pids, err := s.Pids(host)
	require.NoError(s.t, err)
	var all []string
	for _, pid := range pids {
		if slices.Contains(s.quiet[host], pid) {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && (s.alien == "" || !bytes.HasPrefix(line, []byte(s.alien))) {
			all = append(all, fmt.Sprintf("%s %d: %s", host, pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return all
}

// gone fails the test unless every process of jobs has ended on the hosts, or
// does within 2 s.
func (s *site) gone(hosts ...string) {
	s.t.Helper()
	if len(hosts) == 0 {
		hosts = s.Hosts()
	}
	var all []string
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		all = nil
		for _, h := range hosts {
			all = append(all, s.left(h)...)
		}
		if len(all) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	require.Empty(s.t, all, "processes are left after 2 s")
}

// pids is the processes of a host whose command line contains text.
func (s *site) pids(host, text string) []int {
	var found []int
	for _, line := range s.left(host) {
		if strings.Contains(line, text) {
			var pid int
			_, err := fmt.Sscanf(strings.TrimPrefix(line, host), "%d", &pid)
			require.NoError(s.t, err)
			found = append(found, pid)
		}
	}
	return found
}

// A result is how a command ended.
type result struct {
	code      int
	out, errs string
}

func (r result) String() string { return fmt.Sprintf("code %d, out %q, err %q", r.code, r.out, r.errs) }

// A running is a command that has been started.
type running struct {
	s         *site
	cmd       *lab.Cmd
	out, errs output
}

// An output is what a command has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await returns when o contains text n times.
func (o *output) await(t testing.TB, text string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(o.String(), text) >= n }, 30*time.Second, 2*time.Millisecond,
		"never had %q %d times", text, n)
}

// command is a command of the first host; it is killed when the test takes too
// long.
func (s *site) command(words ...string) *running {
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Second)
	s.t.Cleanup(stop)
	r := &running{s: s, cmd: s.Command(ctx, s.Hosts()[0], words[0], words[1:]...)}
	r.cmd.Env = append(r.cmd.Env, s.env...)
	r.cmd.Dir = s.dir
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	r.cmd.WaitDelay = 5 * time.Second // what is left behind may hold the outputs
	return r
}

// start starts mpivrun.
func (s *site) start(args ...string) *running {
	s.t.Helper()
	r := s.command(append([]string{s.program("mpivrun")}, args...)...)
	require.NoError(s.t, r.cmd.Start())
	return r
}

// run runs mpivrun.
func (s *site) run(args ...string) result {
	s.t.Helper()
	return s.start(args...).wait()
}

func (r *running) wait() result {
	r.s.t.Helper()
	err := r.cmd.Wait()
	if ee := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ee) {
		require.NoError(r.s.t, err, "%s", r.errs.String())
	}
	return result{r.cmd.ProcessState.ExitCode(), r.out.String(), r.errs.String()}
}

func (r *running) signal(sig syscall.Signal) {
	r.s.t.Helper()
	require.NoError(r.s.t, r.cmd.Process.Signal(sig))
}

// sentences is what mpivrun itself has said.
func (r result) sentences() (all []string) {
	for line := range strings.Lines(r.errs) {
		if s, ok := strings.CutPrefix(line, "mpivrun: "); ok {
			all = append(all, strings.TrimRight(s, "\n"))
		}
	}
	return all
}

// needs skips the test where a program is not installed.
func needs(t testing.TB, from string, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (Debian: apt-get install %s)", name, from)
		}
	}
}

// needsRoot skips the test for who is not the machine's own root.
func needsRoot(t testing.TB, what string) {
	t.Helper()
	users, _ := os.ReadFile("/proc/self/uid_map")
	if f := strings.Fields(string(users)); os.Geteuid() != 0 || len(f) != 3 || f[2] != "4294967295" {
		t.Skipf("%s runs as the machine's root only", what)
	}
}
