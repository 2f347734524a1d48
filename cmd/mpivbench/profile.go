package main

import (
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
)

var profiling sync.Mutex // held by the rank of the process that profiles it

// startProfile begins to profile the process where that is asked for and no
// other rank of it does; stop ends that.
func (o *options) startProfile() (stop func(), err error) {
	if o.profile == "" || !profiling.TryLock() {
		return func() {}, nil
	}
	f, err := os.Create(fmt.Sprintf("%s.%d", o.profile, os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("create the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("profile the process: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}
