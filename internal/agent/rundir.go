package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Names in a job's directory.
const (
	lockName = "lock"     // locked by the agent while it lives
	askName  = "ask.sock" // where mpivrun finds it
	ofName   = "of"       // the name of a job that began on another host
)

// maxSocketName is what fits a socket's address on Linux, its final zero included.
const maxSocketName = 108

// RuntimeDir is the directory of this user's running jobs: mpiv in
// XDG_RUNTIME_DIR, or mpiv-UID in the directory for temporary files where there
// is none. It need not exist yet.
func RuntimeDir() string { return runtimeDirs()[0] }

// runtimeDirs is where this user's jobs may be, whatever session started them.
func runtimeDirs() []string {
	temp := filepath.Join(os.TempDir(), "mpiv-"+strconv.Itoa(os.Getuid()))
	if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) && ours(x) == nil {
		return []string{filepath.Join(x, "mpiv"), temp}
	}
	return []string{temp}
}

// ours is nil if dir is a directory of this user's that nobody else can enter.
func ours(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(st.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to another user; set XDG_RUNTIME_DIR to a directory of yours", dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s can be entered by other users (mode %#o); chmod 700 it or remove it", dir, info.Mode().Perm())
	}
	return nil
}

// A jobDir is the directory of one running job, locked as long as its agent
// lives.
type jobDir struct {
	path string
	lock *os.File // nil once it is removed
}

// makeJobDir makes the directory for a job called name in dir, or for name-2,
// name-3 … where that is taken.
func makeJobDir(dir, name string) (*jobDir, error) {
	dir, err := filepath.Abs(dir) // processes may run elsewhere
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("make the runtime directory: %w", err)
	}
	if err := ours(dir); err != nil {
		return nil, fmt.Errorf("runtime directory: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	clean(dir)

	path := filepath.Join(dir, name)
	for i := 2; ; i++ {
		err = os.Mkdir(path, 0o700)
		if !errors.Is(err, os.ErrExist) {
			break
		}
		path = filepath.Join(dir, name+"-"+strconv.Itoa(i))
	}
	if err != nil {
		return nil, fmt.Errorf("make the job's directory: %w", err)
	}
	if s := filepath.Join(path, askName); len(s) >= maxSocketName {
		os.Remove(path)
		return nil, fmt.Errorf("%s is too long for the name of a socket; set XDG_RUNTIME_DIR to a directory with a shorter name", s)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("lock the job's directory: %w", err)
	}
	return &jobDir{path, lock}, nil
}

// belongs notes that the job began elsewhere, as name.
func (d *jobDir) belongs(name string) error {
	return os.WriteFile(filepath.Join(d.path, ofName), []byte(name), 0o600)
}

// name is what the job is called here.
func (d *jobDir) name() string { return filepath.Base(d.path) }

// remove removes it; twice is harmless.
func (d *jobDir) remove() {
	if d.lock == nil {
		return
	}
	os.RemoveAll(d.path)
	d.lock.Close()
	d.lock = nil
}

// lockDir keeps others from making or removing jobs in dir until unlock.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the runtime directory: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the runtime directory: %w", err)
	}
	return func() { f.Close() }, nil
}

// clean removes the directories of jobs in dir whose agent is gone, and returns
// the others. The caller holds lockDir.
func clean(dir string) (alive []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if ended(path) {
			continue
		}
		if abandoned(path) {
			os.RemoveAll(path)
		} else {
			alive = append(alive, path)
		}
	}
	return alive
}

func abandoned(path string) bool {
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// Ended is the directory of a job called name that has ended while nobody looked, or of the
// only one if name is empty; "" if there is none.
func Ended(name string) string {
	if name == "" {
		name = "*"
	} else {
		name = cleanName(name)
	}
	var all []string
	for _, dir := range runtimeDirs() {
		if ours(dir) == nil {
			found, _ := filepath.Glob(filepath.Join(dir, name+endedSuffix))
			all = append(all, found...)
		}
	}
	if len(all) != 1 {
		return ""
	}
	return all[0]
}

// A Found is a running job.
type Found struct {
	Name string
	Dir  string
	Made time.Time

	of string // the job's name where the agent of another host began it; "": it began here
}

// Jobs is this user's running jobs on this host, the oldest first. It removes
// what dead agents have left.
func Jobs() ([]Found, error) {
	found, err := directories()
	return once(found), err
}

// Find is the running job called name on this host. Where hosts share a file system each has
// a name of its own for it, of which Jobs lists one; false: it is none of them.
func Find(name string) (Found, bool, error) {
	found, err := directories()
	i := slices.IndexFunc(found, func(f Found) bool { return f.Name == name })
	if err != nil || i < 0 {
		return Found{}, false, err
	}
	return found[i], true, nil
}

// directories is those of all jobs, the oldest first.
func directories() ([]Found, error) {
	var found []Found
	for _, dir := range runtimeDirs() {
		jobs, err := jobsIn(dir)
		if err != nil {
			return nil, err
		}
		found = append(found, jobs...)
	}
	slices.SortFunc(found, func(a, b Found) int { return a.Made.Compare(b.Made) })
	return found, nil
}

// once is all jobs once: hosts of a lab, and those that share a file system, find what all
// agents of a job have made.
func once(all []Found) (some []Found) {
	for i, f := range all {
		twin := func(o Found) bool { return o.of == "" && o.Name == f.of }
		if f.of == "" || !slices.ContainsFunc(all, twin) && !slices.ContainsFunc(all[:i], func(o Found) bool { return o.of == f.of }) {
			some = append(some, f)
		}
	}
	return some
}

func jobsIn(dir string) ([]Found, error) {
	if err := ours(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var found []Found
	for _, path := range clean(dir) {
		f := Found{Name: filepath.Base(path), Dir: path}
		if info, err := os.Stat(filepath.Join(path, lockName)); err == nil {
			f.Made = info.ModTime()
		}
		if of, err := os.ReadFile(filepath.Join(path, ofName)); err == nil {
			f.of = string(of)
		}
		found = append(found, f)
	}
	return found, nil
}
