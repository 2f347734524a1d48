package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/exit"
)

// Detach starts j, which is to outlive its head and this process, with a command that is an
// agent, and returns the directory of the job. An error of the program or of its place is
// an *exit.Error. A Viewer shows the job.
func Detach(j Job, command []string) (dir string, err error) {
	hosts, _, err := layout(j.withDefaults())
	switch {
	case err != nil:
		return "", err
	case j.Options.Survive != "crashes":
		return "", &exit.Error{Code: codeUsage, Err: errors.New("--outlive is for ranks that survive: it needs --survive crashes, and spares")}
	case len(busyHosts(hosts)) < 2:
		return "", &exit.Error{Code: codeUsage, Err: errors.New("--outlive needs agents on several hosts (--host): on one there is nobody who could go on")}
	case !slices.ContainsFunc(j.Hosts, func(h Host) bool { return h.Here }):
		return "", &exit.Error{Code: codeUsage, Err: errors.New("--outlive: this host must be one of the job's")}
	case j.Launch.Slurm:
		return "", &exit.Error{Code: codeUsage, Err: errors.New("--outlive: what Slurm starts ends with its srun; --launch-agent ssh does without")}
	case j.OutputDir != "":
		return "", &exit.Error{Code: codeUsage, Err: errors.New("--outlive keeps the output for who shows the job, and --output does not go with it")}
	case len(command) == 0:
		return "", errors.New("mpivrun cannot find itself to start an agent")
	}
	orders, err := FirstOrders(j)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what the terminal says is for who shows the job
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start an agent: %w", err)
	}
	var b Begun
	if _, err = in.Write(orders); err == nil {
		var line []byte
		if line, err = bufio.NewReader(out).ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &b)
		}
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return "", fmt.Errorf("the agent of this host has not begun: %w", err)
	}
	in.Close()
	out.Close()
	if b.Error != "" {
		cmd.Wait()
		return "", &exit.Error{Code: b.Code, Err: errors.New(b.Error)}
	}
	return b.Dir, cmd.Process.Release()
}

// logName is where in the job's directory an agent writes that has nobody to tell.
const logName = "agent.log"

// toLog has what Go's runtime says of this process go to a file: who started it may not be
// there to read.
func toLog(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), 2, 0)
}
