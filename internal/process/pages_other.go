//go:build !linux

package process

func largePages([]byte) {}
