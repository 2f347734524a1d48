package buddy

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/control"
)

// lifeOf is which life a file KIND-R.E is of.
func lifeOf(name string) (l control.Life, ok bool) {
	base := filepath.Base(name)
	text := base[strings.LastIndexByte(base, '-')+1:]
	r, e, ok := strings.Cut(text, ".")
	rank, err1 := strconv.Atoi(r)
	epoch, err2 := strconv.ParseUint(e, 10, 32)
	return control.Life{Rank: rank, Epoch: uint32(epoch)}, ok && err1 == nil && err2 == nil
}

func (k *Keeper) choicesFile(l control.Life) string {
	return filepath.Join(k.dir, fmt.Sprintf("choices-%d.%d", l.Rank, l.Epoch))
}

// RemoveBefore removes from a job's directory the files KIND-R.E, of those kinds, of lives of the
// rank before l. What cannot be removed stays.
func RemoveBefore(dir string, l control.Life, kinds ...string) {
	for _, kind := range kinds {
		files, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("%s-%d.*", kind, l.Rank)))
		for _, f := range files {
			epoch, err := strconv.ParseUint(f[strings.LastIndexByte(f, '.')+1:], 10, 32)
			if err == nil && uint32(epoch) < l.Epoch {
				os.Remove(f)
			}
		}
	}
}
