//go:build linux && !amd64

package shm

func prefetchWrite([]byte) {}

func prefetchLines(*byte, int) {}

func prefetchRead(*uint64) {}

func prefetchBody([]byte) {}
