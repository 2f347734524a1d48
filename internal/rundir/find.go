package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A Job is one that runs.
type Job struct {
	Name string    // here; other hosts may have to call it otherwise
	Dir  string    // where it is
	Made time.Time // that directory

	of string // the job's name where the agent of another host began it; "": it began here
}

// Jobs is this user's running jobs on this host, the oldest first. It removes
// what dead agents have left.
func Jobs() ([]Job, error) {
	found, err := directories()
	return once(found), err
}

// Find is the running job called name on this host, or, where none is, where it began. Where hosts share a
// file system each has a name of its own for it, of which Jobs lists one; false: it is none of them.
func Find(name string) (Job, bool, error) {
	found, err := directories()
	i := slices.IndexFunc(found, func(f Job) bool { return f.Name == name })
	if i < 0 && name != "" {
		i = slices.IndexFunc(found, func(f Job) bool { return f.of == name })
	}
	if err != nil || i < 0 {
		return Job{}, false, err
	}
	found[i].Name = name
	return found[i], true, nil
}

// directories is those of all jobs, the oldest first.
func directories() ([]Job, error) {
	var found []Job
	for _, dir := range roots() {
		jobs, err := JobsIn(dir)
		if err != nil {
			return nil, err
		}
		found = append(found, jobs...)
	}
	slices.SortFunc(found, func(a, b Job) int { return a.Made.Compare(b.Made) })
	return found, nil
}

// once is all jobs once: hosts of a lab, and those that share a file system, find what all
// agents of a job have made.
func once(all []Job) (some []Job) {
	for i, f := range all {
		twin := func(o Job) bool { return o.of == "" && o.Name == f.of }
		if f.of == "" || !slices.ContainsFunc(all, twin) && !slices.ContainsFunc(all[:i], func(o Job) bool { return o.of == f.of }) {
			if f.of != "" && !slices.ContainsFunc(all, func(o Job) bool { return o.Name == f.of }) {
				f.Name = f.of // as who began it calls it
			}
			some = append(some, f)
		}
	}
	return some
}

// JobsIn is those in one root, such as Root.
func JobsIn(dir string) ([]Job, error) {
	if err := ours(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	unlock, err := lockRoot(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var found []Job
	for _, path := range clean(dir) {
		f := Job{Name: filepath.Base(path), Dir: path}
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
