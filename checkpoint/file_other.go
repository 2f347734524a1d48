//go:build !linux

package checkpoint

import (
	"errors"
	"fmt"
	"os"
)

func reserve(f *os.File, _, _ int64) error {
	return fmt.Errorf("reserve space in %s: not on this system: %w", f.Name(), errors.ErrUnsupported)
}

func mapped(f *os.File, _, _ int64) ([]byte, error) {
	return nil, fmt.Errorf("map %s: not on this system: %w", f.Name(), errors.ErrUnsupported)
}

func unmap([]byte) {}

func populate([]byte) {}

func holdAlone(f *os.File) error {
	return fmt.Errorf("lock %s: not on this system: %w", f.Name(), errors.ErrUnsupported)
}
