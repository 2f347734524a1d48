//go:build linux

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// dirPrefix begins the name of every directory that this package makes.
	dirPrefix = "mpivlab-"
	// homeVariable says to a process in namespaces of [Enter] which directory,
	// looked after from outside, its labs are in.
	homeVariable = "MPIV_LAB_HOME"
	// terminalVariable says to it where to read which group the terminal belongs to,
	// of those that are outside and have no numbers inside.
	terminalVariable = "MPIV_LAB_TERMINAL"
)

// entered is what Enter found out: once for a process.
var entered struct {
	done bool
	err  error // why no labs can be made
}

// inside reports whether Enter has put this process into namespaces, which the
// kernel ends with all that is in them.
func inside() bool { return os.Getenv(homeVariable) != "" }

// home is the directory that labs are made in.
func home() string {
	if inside() {
		return os.Getenv(homeVariable)
	}
	return os.TempDir()
}

// Main is what a test binary whose tests make labs has as its TestMain:
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
// Where no labs can be made, New says so to each test.
func Main(m interface{ Run() int }) {
	_ = Enter()
	os.Exit(m.Run())
}

// Enter must be the first thing that a program does which makes labs. The lab
// starts the program again for its own purposes, and Enter does not return then.
//
// For root it does nothing more. For others it runs the program once more, as root
// of new user, network, name, mount and process namespaces, passes signals on to it, and
// exits as it does; so main begins a second time, in another process. Where the
// kernel refuses that, the error wraps ErrUnavailable.
func Enter() error {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case asKeeper:
			syscall.Exit(keep(os.Args[2])) // at once: os.Exit waits a second when built with -race
		case asInit:
			syscall.Exit(initialize(os.Args[2:]))
		case asAgent:
			syscall.Exit(runAgent(os.Args[2:]))
		}
	}
	entered.done = true
	if inside() || privileged() {
		return nil
	}
	code, err := again()
	if err == nil {
		os.Exit(code)
	}
	entered.err = fmt.Errorf("a lab needs root, or a kernel that lets users make user namespaces: %w (%w)", err, ErrUnavailable)
	return entered.err
}

// available is nil if this process can make labs.
func available() error {
	if !entered.done {
		return errors.New("call lab.Enter first thing in main, or lab.Main in TestMain")
	}
	return entered.err
}

// privileged reports whether this process may make and configure namespaces.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	return data[0].Effective&needed == needed
}

// again runs this program in new namespaces and returns its exit code. An error
// means that it has not been run.
func again() (int, error) {
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return 0, err
	}
	k, err := newKeeper(dir, nil)
	if err != nil {
		os.RemoveAll(dir)
		return 0, err
	}
	defer k.close() // it removes dir

	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{asInit}, os.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), homeVariable+"="+dir)
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL, // and with the first process of a process namespace all others end
	}
	runtime.LockOSThread() // whose end, too, would be taken for the parent's
	defer runtime.UnlockOSThread()
	signals := catch()
	defer signal.Stop(signals) // where no lab can be made, this program goes on
	err = cmd.Start()
	w.Close()
	if errors.Is(err, syscall.ENOSPC) {
		err = errors.New("the limit user.max_user_namespaces is reached")
	}
	if err != nil {
		return 0, err
	}
	if refused, _ := io.ReadAll(r); len(refused) > 0 {
		_ = cmd.Wait()
		return 0, errors.New(string(refused))
	}
	return relay(cmd, signals), nil
}

// initialize is what the first process in the new namespaces does: it runs the
// program, and buries whoever is left without a parent.
func initialize(args []string) int {
	unix.CloseOnExec(firstHeld) // or the program would hold it, and who waits for its end pass on no signals
	pipe := os.NewFile(firstHeld, "pipe")
	if stat, err := os.Open(selfStat); err == nil { // while /proc is that from outside
		defer stat.Close()
		os.Setenv(terminalVariable, fmt.Sprintf("/proc/1/fd/%d", stat.Fd()))
	}
	if err := mountProc(); err != nil {
		fmt.Fprint(pipe, err)
		return 1
	}
	signals := catch()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	p, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Fprint(pipe, err)
		return 1
	}
	pipe.Close() // nothing written: all is well
	for {
		select {
		case s := <-signals:
			passOn(p, s)
		case <-children:
			for {
				var status syscall.WaitStatus
				pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
				if err == syscall.EINTR {
					continue
				}
				if pid <= 0 {
					break
				}
				if pid == p.Pid {
					return exitCode(status)
				}
			}
		}
	}
}

// mountProc makes /proc show the processes of this namespace.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// catch begins to collect the signals that are passed on. Those that are ignored
// (nohup) stay so, for the program too.
func catch() chan os.Signal {
	signals := make(chan os.Signal, 16)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}

// relay waits for a command that was started, passes signals on to it, and returns
// the exit code that a shell would have for it.
func relay(cmd *exec.Cmd, signals <-chan os.Signal) int {
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // what there is to know is in ProcessState
		close(ended)
	}()
	for {
		select {
		case s := <-signals:
			passOn(cmd.Process, s)
		case <-ended:
			return exitCode(cmd.ProcessState.Sys().(syscall.WaitStatus))
		}
	}
}

// passOn sends s to p, unless it was typed at the terminal and has come there too.
func passOn(p *os.Process, s os.Signal) {
	if (s == syscall.SIGINT || s == syscall.SIGQUIT) && foreground() {
		return
	}
	_ = p.Signal(s) // one that has ended needs none
}

const selfStat = "/proc/self/stat"

// foreground reports whether the terminal sends its signals to this process.
func foreground() bool {
	stat, _ := os.ReadFile(selfStat)
	group, at := groups(stat)
	if group == outside {
		stat, _ = os.ReadFile(os.Getenv(terminalVariable))
		group, at = groups(stat)
	}
	return group == at && group != outside
}

// outside is in a process namespace the number of all groups that are not in it.
const outside = "0"

// groups reads from what proc(5) calls stat the group of a process, and the one that its
// terminal sends signals to.
func groups(stat []byte) (own, terminal string) {
	const group, foreground = 2, 5 // behind the name, which may have anything in it
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= foreground {
		return outside, outside
	}
	return fields[group], fields[foreground]
}

// exitCode is 128 and the number of the signal for a process that one ended.
func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
