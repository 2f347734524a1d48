//go:build !race

package mpiv

const raceEnabled = false
