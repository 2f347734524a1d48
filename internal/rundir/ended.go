package rundir

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// What is left to be told of a job that has ended while nobody looked is beside its directory, in one
// whose name ends so, for a day.
const (
	endedSuffix = ".ended"
	endedKept   = 24 * time.Hour
	restName    = "rest"
)

// Leave keeps the rest of the job in dir, for Rest.
func Leave(dir string, rest []byte) error {
	to := dir + endedSuffix
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, restName), rest, 0o600)
}

// Rest is what was left in dir, which Left has found. Who shows it removes dir.
func Rest(dir string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, restName)) }

// Left is the directory that Leave has made for a job called name, or the only such one if name
// is empty; "" if there is none.
func Left(name string) string {
	if name == "" {
		name = "*"
	} else {
		name = CleanName(name)
	}
	var all []string
	for _, dir := range roots() {
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

// ended tells whether path is such a directory, which is still kept.
func ended(path string) bool {
	info, err := os.Stat(path)
	return strings.HasSuffix(path, endedSuffix) && err == nil && time.Since(info.ModTime()) < endedKept
}
