//go:build !linux

package hugepages

// Make is n bytes.
func Make(n int) []byte { return make([]byte, n) }
