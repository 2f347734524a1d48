//go:build !race

// Package race tells whether the race detector is there.
package race

// Enabled tells whether this program was built with the race detector.
const Enabled = false
