// Package rundir is where the jobs that run on a host are found: a directory for each, which
// nobody but its user can enter, and which its agent has locked while it lives.
//
// What dead agents have left is removed by their guards, or by whoever looks next.
package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Names in the directory of a job. The first is beside the directories of jobs, too.
const (
	lockName = "lock"     // locked by the agent while it lives
	askName  = "ask.sock" // where mpivrun finds it
	ofName   = "of"       // the name of a job that began on another host

	longestName = "p999999.sock" // of the sockets there may be, one for each process that there ever was
)

// maxSocketName is what fits a socket's address on Linux, its final zero included.
const maxSocketName = 108

// AskSocket is where the agent of the job in dir is asked.
func AskSocket(dir string) string { return filepath.Join(dir, askName) }

// Root is the directory of this user's running jobs: mpiv in
// XDG_RUNTIME_DIR, or mpiv-UID in the directory for temporary files where there
// is none. It need not exist yet.
func Root() string { return roots()[0] }

// roots is where this user's jobs may be, whatever session started them.
func roots() []string {
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

// A Dir is the directory of one running job. It is locked until Remove, or until the process
// ends that has made it: a file in it, and the directory itself, which keeps away who removes
// what is old in a directory for temporary files (tmpfiles.d).
type Dir struct {
	Path  string
	locks []*os.File // nil once it is removed
}

// Make makes the directory for a job called name in dir, such as Root, or for name-2,
// name-3 … where that is taken.
func Make(dir, name string) (*Dir, error) {
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
	unlock, err := lockRoot(dir)
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
	if s := filepath.Join(path, longestName); len(s) >= maxSocketName {
		os.Remove(path)
		return nil, fmt.Errorf("%s is too long for the name of a socket; set XDG_RUNTIME_DIR to a directory with a shorter name", s)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = flock(lock)
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("lock the job's directory: %w", err)
	}
	d := &Dir{path, []*os.File{lock}}
	if whole, err := os.Open(path); err == nil {
		d.locks = append(d.locks, whole)
		_ = flock(whole) // there are file systems where directories cannot be
	}
	return d, nil
}

func flock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// Belongs notes that the job began elsewhere, as name.
func (d *Dir) Belongs(name string) error {
	return os.WriteFile(filepath.Join(d.Path, ofName), []byte(name), 0o600)
}

// Name is what the job is called here.
func (d *Dir) Name() string { return filepath.Base(d.Path) }

// Remove removes it; twice is harmless.
func (d *Dir) Remove() {
	if d.locks == nil {
		return
	}
	os.RemoveAll(d.Path)
	for _, f := range d.locks {
		f.Close()
	}
	d.locks = nil
}

// lockRoot keeps others from making or removing jobs in dir until unlock.
func lockRoot(dir string) (unlock func(), err error) {
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
// the others. The caller holds lockRoot.
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

// Reap removes the directory of a job whose agent is gone; false if it is not.
func Reap(path string) bool {
	if _, err := os.Lstat(filepath.Join(path, lockName)); err != nil {
		return true // it is removed already, or no such directory
	}
	unlock, err := lockRoot(filepath.Dir(path))
	if err != nil {
		return false
	}
	defer unlock()
	if !abandoned(path) {
		return false
	}
	os.RemoveAll(path)
	return true
}

// abandoned tells whether nobody holds the locks of a job's directory. Somebody may have removed the file.
func abandoned(path string) bool {
	if whole, err := os.Open(path); err == nil {
		defer whole.Close()
		if flock(whole) == syscall.EWOULDBLOCK {
			return false
		}
	}
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	return flock(f) == nil
}

// CleanName makes name fit for a directory and a command line.
func CleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, name)
	name = strings.TrimLeft(name, ".-")
	if n := len(name); n > 40 {
		name = name[:20] + name[n-20:]
	}
	return name
}
