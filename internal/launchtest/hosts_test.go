//go:build linux

package launchtest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Where ranks are, in order, for every way to say it.
func TestWhereRanksAre(t *testing.T) {
	s := newSite(t, 4)
	s.settled()
	lines := strings.Split(strings.TrimSpace(s.Hostfile(2)), "\n") // as mpivlab hostfile has them
	files := map[string]string{
		"all":     strings.Join(lines, "\n"),
		"others":  strings.Join(lines[1:], "\n"),
		"openmpi": "# the nodes\nX slots = 1\nY slots=2 max-slots=2\n\nZ slots=1 max_slots=3\n",
		"mpich":   "Y:2\nX:1 # here\nY:1\n",
		"full":    "X slots=1 max_slots=1\nY slots=1 max_slots=1\n",
	}
	for name, text := range files {
		s.write(name, text+"\n", 0o644)
	}
	for _, c := range []struct {
		line string
		code int
		want string // hosts by rank, or a sentence
	}{
		{"--hostfile all", 0, "X X Y Y Z Z W W"},
		{"--hostfile all --map-by node", 0, "X Y Z W X Y Z W"},
		{"--hostfile all -n 3", 0, "X X Y"},
		{"--hostfile all -n 3 --map-by node", 0, "X Y Z"},
		{"--hostfile all -ppn 1", 0, "X Y Z W"},
		{"--hostfile all -n 9", 2, "9 processes do not fit 8 slots"},
		{"--hostfile all -n 9 --oversubscribe", 0, "X X Y Y Z Z W W X"},
		{"--hostfile all --transport shm", 2, "--transport shm: hosts X and Y cannot reach each other by it: add tcp"},
		{"--hostfile all --transport shm -n 2", 0, "X X"},
		{"--hostfile all --host W,Y:1", 0, "W W Y"},
		{"--hostfile all --host A", 2, "host A is not in --hostfile all"},
		{"--hostfile others -n 3", 0, "Y Y Z"},
		{"--hostfile openmpi", 0, "X Y Y Z"},
		{"--hostfile openmpi -n 7 --oversubscribe", 0, "X Y Y Z X Z X"},
		{"--machinefile mpich", 0, "Y Y Y X"},
		{"--hostfile full -n 3 --oversubscribe", 2, "3 processes do not fit the hosts, whose max_slots take 2"},
		{"--host W,X,W", 0, "W W X"},
		{"--host " + s.addr("X") + ":1," + s.addr("Y") + ":2", 1, "host 10.1.0.2: no agent was started there"}, // the lab knows hosts by name only
		{"--host X:2,localhost", 0, "X X X"},
		{"--host Y --ranks-per-process 3 -n 3", 0, "Y"},
	} {
		words := append(append(s.byLab(), strings.Fields(c.line)...), "--tag-output", "hostname")
		r := s.run(words...)
		require.Equal(t, c.code, r.code, "%s: %v", c.line, r)
		if c.code != 0 {
			require.Len(t, r.sentences(), 1, "%s: %v", c.line, r)
			require.Contains(t, r.sentences()[0], c.want, c.line)
			continue
		}
		at := make([]string, len(strings.Fields(c.want)))
		for line := range strings.Lines(r.out) {
			label, host, ok := strings.Cut(strings.TrimSpace(line), "]<stdout>: ")
			require.True(t, ok, "%s: %v", c.line, r)
			i := strings.Index("0123456789", label[1:2])
			require.Less(t, i, len(at), "%s: %v", c.line, r)
			at[i] = host
		}
		require.Equal(t, c.want, strings.Join(at, " "), c.line)
	}
	s.gone()
}

// An interrupt typed at the terminal reaches each rank once, wherever it is, and
// what is typed the rank that reads.
func TestTerminalAndOtherHosts(t *testing.T) {
	s := newSite(t, 3)
	s.settled()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	script := `n=0; trap 'n=$((n+1))' INT; [ $MPIV_PROCESS = 0 ] && { read x; echo "got $x"; }; echo ready; while [ $n = 0 ]; do sleep 0.02; done; sleep 0.3; echo "had $n"; exit 0`
	r := s.command(append(append([]string{s.program("mpivrun")}, s.byLab()...), "--host", "Y,Z,X", "sh", "-c", script)...)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = tty, tty, tty
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, r.cmd.Start())
	tty.Close()
	seen := ""
	buf := make([]byte, 1024)
	await := func(text string, n int) {
		for strings.Count(seen, text) < n {
			k, err := master.Read(buf)
			require.NoError(t, err, "%q", seen)
			seen += string(buf[:k])
		}
	}
	_, err = master.WriteString("Ada\n")
	require.NoError(t, err)
	await("got Ada", 1)
	await("ready", 3)
	_, err = master.Write([]byte{3}) // Ctrl-C
	require.NoError(t, err)
	await("had 1", 3)
	r.cmd.Wait()
	require.Equal(t, 0, r.cmd.ProcessState.ExitCode(), "%q", seen)
	s.gone()
}
