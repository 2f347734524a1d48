package crew

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/mpiv/mpiv/internal/exit"
)

// A Program is what a process executes.
type Program struct {
	Path string   // looked for in PATH unless it contains a slash
	Args []string // without the program's own name
	Env  []string // "VAR=value", on top of this operating-system process's environment
	Dir  string   // working directory. Empty means this operating-system process's.
}

// noDir is why p cannot work in its directory; nil: it may.
func (p Program) noDir() error {
	what := "does not exist"
	if p.Dir == "" || isDir(p.Dir) {
		return nil
	} else if _, err := os.Stat(p.Dir); err == nil {
		what = "is not a directory"
	}
	return &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("working directory %s %s", p.Dir, what)}
}

// Find is the file to execute for p on this host, an absolute path. The error is an [*exit.Error].
func (p Program) Find() (file string, err error) {
	if err := p.noDir(); err != nil {
		return "", err
	}
	search := valueOf(p.Env, "PATH")
	if search == "" {
		search = os.Getenv("PATH")
	}
	return resolve(p.Path, p.Dir, search)
}

// resolve finds the file to execute for path, as a shell in dir would with
// PATH as search.
func resolve(path, dir, search string) (string, error) {
	if path == "" {
		return "", &exit.Error{Code: exit.NotFound, Err: errors.New("the program's name is empty")}
	}
	if strings.Contains(path, "/") {
		full := path
		if !filepath.IsAbs(path) {
			full = filepath.Join(dir, path)
		}
		full, err := filepath.Abs(full)
		if err != nil {
			return "", &exit.Error{Code: exit.NotFound, Err: err}
		}
		return full, executable(path, full)
	}
	var denied error
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		full, err := filepath.Abs(filepath.Join(d, path))
		if err != nil {
			continue
		}
		err = executable(path, full)
		if err == nil {
			return full, nil
		}
		if ee, ok := errors.AsType[*exit.Error](err); ok && ee.Code == exit.NotExecutable && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
		return "", &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("program %q is not in PATH; for the one in this directory write ./%s", path, path)}
	}
	return "", &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("program %q was not found in PATH", path)}
}

// executable is nil if full can be executed; name is what the user called it.
func executable(name, full string) error {
	info, err := os.Stat(full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("program %q was not found", name)}
	case err != nil:
		return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q: %w", name, err)}
	case info.IsDir():
		return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q is a directory", name)}
	case info.Mode()&0o111 == 0 && strings.HasSuffix(full, ".go"):
		return isSource(name)
	case info.Mode()&0o111 == 0:
		return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q is not executable; if it is a program: chmod +x %s", name, name)}
	}
	return nil
}

func isSource(name string) error {
	return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q is Go source; build it first: go build -o prog %s", name, name)}
}

// valueOf is the last value of name in env.
func valueOf(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(env[i], "="); ok && k == name {
			return v
		}
	}
	return ""
}

// startError is what a user can do about err.
func startError(prog Program, err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC) && strings.HasSuffix(prog.Path, ".go"):
		return isSource(prog.Path)
	case errors.Is(err, syscall.ENOEXEC):
		return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q is not a binary for this machine, nor a script with #! and an interpreter in its first line", prog.Path)}
	case errors.Is(err, syscall.ENOENT) && prog.noDir() != nil:
		return prog.noDir()
	case errors.Is(err, syscall.ENOENT):
		return &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("program %q: the interpreter or loader that it names does not exist", prog.Path)}
	case errors.Is(err, syscall.EACCES):
		return &exit.Error{Code: exit.NotExecutable, Err: fmt.Errorf("program %q cannot be executed by this user (permission denied)", prog.Path)}
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("start %q: no more processes are allowed (see ulimit -u); --ranks-per-process needs fewer", prog.Path)
	}
	return fmt.Errorf("start %q: %w", prog.Path, err)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
