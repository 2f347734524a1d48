package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// insideVar marks the process that runs in the network namespace of its own.
const insideVar = "MPIVPEERS_INSIDE"

const congestionFile = "/proc/sys/net/ipv4/tcp_congestion_control"

func inside() bool { return os.Getenv(insideVar) != "" }

// rerunInside runs this command again in a network namespace of its own and
// returns its exit code. The namespace has no name: the kernel removes it with
// its last process, so an interrupt, or even a kill, leaves nothing behind.
func rerunInside() (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVar+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if os.Geteuid() != 0 {
		// Root of a user namespace may do as it likes in a network namespace made there.
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	// A terminal's interrupt reaches the child too; one sent to this process alone is passed on.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start in a network namespace (needs root or user namespaces; without -congestion none is made): %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended meanwhile
		case <-ended:
			return cmd.ProcessState.ExitCode(), nil
		}
	}
}

// prepareInside makes the new namespace usable: loopback up, congestion control set.
func prepareInside(congestion string) error {
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set the loopback interface up (ip is in Debian's iproute2): %w: %s", err, out)
	}
	if now, err := congestionControl(); err != nil || now == congestion {
		return err // inherited; only some may be set in a namespace
	}
	if err := os.WriteFile(congestionFile, []byte(congestion), 0); err != nil {
		available, _ := os.ReadFile(filepath.Join(filepath.Dir(congestionFile), "tcp_available_congestion_control"))
		return fmt.Errorf("set congestion control %s (the kernel has %s; in a namespace it allows the one of the host and reno): %w",
			congestion, strings.Join(strings.Fields(string(available)), ", "), err)
	}
	return nil
}

func congestionControl() (string, error) {
	text, err := os.ReadFile(congestionFile)
	return strings.TrimSpace(string(text)), err
}
