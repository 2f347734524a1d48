package rundir

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "mpiv-dir") // 0700, and short enough for a socket
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestJobsOfDeadAgentsAreRemoved(t *testing.T) {
	dir := shortDir(t)
	alive, err := Make(dir, "job")
	require.NoError(t, err)
	second, err := Make(dir, "job")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "job-2"), second.Path, "a name that is taken gets a number")

	require.NoError(t, os.Remove(filepath.Join(alive.Path, lockName))) // as by who cleans up
	for _, f := range second.locks {
		f.Close() // as when its agent is killed
	}
	jobs, err := JobsIn(dir)
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	require.Equal(t, "job", jobs[0].Name)
	require.NoDirExists(t, second.Path)

	alive.Remove()
	jobs, err = JobsIn(dir)
	require.NoError(t, err)
	require.Empty(t, jobs)
}

// Who removes what is old leaves the directory of a job alone while its agent lives.
func TestOneOfADeadAgentIsReaped(t *testing.T) {
	dir := shortDir(t)
	d, err := Make(dir, "job")
	require.NoError(t, err)
	require.False(t, Reap(d.Path), "its agent lives")
	require.DirExists(t, d.Path)
	for _, f := range d.locks {
		f.Close() // as when its agent is killed
	}
	require.True(t, Reap(d.Path))
	require.NoDirExists(t, d.Path)
	require.True(t, Reap(d.Path), "it is gone already")
	other := t.TempDir()
	require.True(t, Reap(other), "that is no job's")
	require.DirExists(t, other)
}

func TestTmpfilesLeavesJobsAlone(t *testing.T) {
	clean, err := exec.LookPath("systemd-tmpfiles")
	if err != nil {
		t.Skip("it takes systemd-tmpfiles, of systemd")
	}
	dir := shortDir(t)
	job, err := Make(filepath.Join(dir, "mpiv"), "job")
	require.NoError(t, err)
	old := time.Now().Add(-time.Hour)
	state, stray := filepath.Join(job.Path, "state"), filepath.Join(dir, "stray")
	for _, name := range []string{state, stray} {
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Chtimes(name, old, old))
	}
	config := filepath.Join(shortDir(t), "clean.conf")
	require.NoError(t, os.WriteFile(config, []byte("d "+dir+" 0700 - - Am:1m\n"), 0o600))
	out, err := exec.Command(clean, "--clean", config).CombinedOutput()
	if _, left := os.Stat(stray); left == nil {
		t.Skipf("systemd-tmpfiles removes nothing here: %v %s", err, out)
	}
	require.FileExists(t, state)
	job.Remove()
	require.NoDirExists(t, job.Path)
}

func TestTheRootIsOursAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(path string) error
		says string
	}{
		{"others may enter", func(p string) error { return os.Mkdir(p, 0o755) }, "chmod 700"},
		{"a file", func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not a directory"},
		{"a link to somewhere", func(p string) error { return os.Symlink(os.TempDir(), p) }, "not a directory"},
		{"too long for a socket", func(p string) error { return nil }, "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "run")
			if c.says == "too long" {
				path += strings.Repeat("x", 100)
			}
			require.NoError(t, c.make(path))
			_, err := Make(path, "job")
			require.ErrorContains(t, err, c.says)
		})
	}
}

// Hosts of a lab have one file system: there the agents of all make a directory.
func TestAJobOfSeveralHostsIsOne(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("TMPDIR", shortDir(t))
	begin := func(name string, elsewhere bool) *Dir {
		d, err := Make(Root(), name)
		require.NoError(t, err)
		t.Cleanup(d.Remove)
		if elsewhere {
			require.NoError(t, d.Belongs(name))
		}
		return d
	}
	names := func() (all []string) {
		jobs, err := Jobs()
		require.NoError(t, err)
		for _, j := range jobs {
			all = append(all, j.Name)
		}
		return all
	}
	begin("far", true) // as on a host of its own
	require.Equal(t, []string{"far"}, names())
	begin("far", true)
	require.Equal(t, []string{"far"}, names())
	first := begin("job", false)
	begin("job", true)
	begin("job", true)
	require.Equal(t, []string{"far", "job"}, names())
	begin("job", false) // another, called so by its user
	require.Equal(t, []string{"far", "job", "job-4"}, names())
	_, found, err := Find("job-2")
	require.NoError(t, err)
	require.True(t, found, "who knows its name may use it")
	first.Remove() // its agent there has died, and others go on
	require.Equal(t, []string{"far", "job", "job-4"}, names(), "it is still called so")
	j, found, err := Find("job")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "job-2", filepath.Base(j.Dir))
	_, found, err = Find("")
	require.NoError(t, err)
	require.False(t, found)
	_, found, err = Find("job-5")
	require.NoError(t, err)
	require.False(t, found)
}

func TestWhereJobsAre(t *testing.T) {
	dir := shortDir(t)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	require.Equal(t, filepath.Join(dir, "mpiv"), Root())
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "gone"))
	require.Equal(t, os.TempDir(), filepath.Dir(Root()))
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", dir)
	require.Equal(t, dir, filepath.Dir(Root()))
}

func TestCleanName(t *testing.T) {
	for name, want := range map[string]string{
		"halo-12": "halo-12", "../etc": "_etc", ".hidden": "hidden", "a b/c": "a_b_c", "-x": "x",
		strings.Repeat("n", 50) + "-4711": strings.Repeat("n", 20) + strings.Repeat("n", 15) + "-4711",
	} {
		require.Equal(t, want, CleanName(name), "%q", name)
	}
}

// What is left of a job that nobody saw end is there for a day, whoever cleans up.
func TestWhatIsLeft(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	t.Setenv("TMPDIR", shortDir(t))
	d, err := Make(Root(), "job")
	require.NoError(t, err)
	require.NoError(t, Leave(d.Path, []byte("the rest")))
	d.Remove()
	jobs, err := Jobs()
	require.NoError(t, err)
	require.Empty(t, jobs)

	left := Left("job")
	require.Equal(t, left, Left(""), "it is the only one")
	rest, err := Rest(left)
	require.NoError(t, err)
	require.Equal(t, "the rest", string(rest))
	require.Empty(t, Left("another"))

	require.NoError(t, Leave(filepath.Join(Root(), "another"), nil))
	require.Empty(t, Left(""), "there are two")
	require.Equal(t, left, Left("job"))

	long := time.Now().Add(-endedKept - time.Minute)
	require.NoError(t, os.Chtimes(left, long, long))
	_, err = Jobs()
	require.NoError(t, err)
	require.Empty(t, Left("job"))
	require.NotEmpty(t, Left("another"))
}
