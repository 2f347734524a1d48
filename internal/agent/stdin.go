package agent

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// typeOn copies what is typed at a terminal, or what in else is, to the pipe out, until either
// ends or done is closed. It closes out.
func typeOn(in, out *os.File, done <-chan struct{}) {
	defer out.Close()
	wake, wakeEnd, err := os.Pipe()
	if err != nil {
		return
	}
	defer wake.Close()
	over := make(chan struct{})
	waker := make(chan struct{})
	go func() {
		defer close(waker)
		select {
		case <-done:
		case <-over:
		}
		wakeEnd.Close()
	}()
	defer func() { close(over); <-waker }()

	buf := make([]byte, 4096)
	for {
		// The terminal is shared with the shell, so it stays a blocking file; we
		// read when there is something to read.
		fds := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if fds[1].Revents != 0 {
			return
		}
		if fds[0].Revents == 0 {
			continue
		}
		n, err := unix.Read(int(in.Fd()), buf)
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil && !errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			return
		}
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// inForeground is false if reading from the terminal f would stop us.
func inForeground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
