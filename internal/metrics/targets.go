package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/mpiv/mpiv/internal/whole"
)

// A group is an element of Prometheus' file_sd format.
type group struct {
	Targets []string `json:"targets"`
}

// WriteTargets replaces the file at path by one for Prometheus' file_sd_configs, with
// these targets, each host:port. Prometheus never sees half of it.
func WriteTargets(path string, targets []string) error {
	groups := []group{}
	if len(targets) > 0 {
		groups = append(groups, group{slices.Compact(slices.Sorted(slices.Values(targets)))})
	}
	text, err := json.MarshalIndent(groups, "", "  ")
	if err != nil {
		return err
	}
	err = whole.Write(path, 0o644, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("write the targets for Prometheus: %w", err)
	}
	return nil
}
