//go:build !linux

package process

func setAside(n int) ([]byte, error) { return make([]byte, n), nil }

func giveBack([]byte) {}

func moveInto(into, b []byte) { copy(into, b) }
