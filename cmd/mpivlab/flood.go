//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos/flood"
	"github.com/mpiv/mpiv/chaos/lab"
)

// floodPort is where the host that is flooded serves.
const floodPort = 8080

// Words by which this program is an end of a flood, on its host. Such an end ends when
// its standard input does.
const (
	asServer   = "flood-server"
	asAttacker = "flood-attacker"
)

// labNetworks is where hosts of labs are.
var labNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

// A deluge is what mpivlab flood is asked for.
type deluge struct {
	host, from  string
	long        time.Duration
	connections int
	bytes       int64
	apache      bool
	tied        bool // it ends when the standard input does
}

const floodUsage = "usage: mpivlab flood HOST [--from HOST] [--for 10s] [--connections 200] [--bytes 8000000] [--with apache]"

func parseFlood(args []string) (d deluge, err error) {
	with := ""
	f := flag.NewFlagSet("flood", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the error is returned, too
	f.StringVar(&d.from, "from", "", "")
	f.DurationVar(&d.long, "for", 10*time.Second, "")
	f.IntVar(&d.connections, "connections", flood.DefaultConnections, "")
	f.Int64Var(&d.bytes, "bytes", flood.DefaultBytes, "")
	f.StringVar(&with, "with", "mpivlab", "")
	f.BoolVar(&d.tied, "tied", false, "")
	for len(args) > 0 { // options may follow the host
		if err := f.Parse(args); err != nil {
			return d, fmt.Errorf("%w; %s", err, floodUsage)
		}
		if args = f.Args(); len(args) > 0 {
			if d.host != "" {
				return d, fmt.Errorf("one host is flooded, not %s and %s; %s", d.host, args[0], floodUsage)
			}
			d.host, args = args[0], args[1:]
		}
	}
	d.apache = with == "apache"
	switch {
	case d.host == "":
		return d, errors.New(floodUsage)
	case with != "apache" && with != "mpivlab":
		return d, fmt.Errorf("--with %s: there are apache, and mpivlab itself", with)
	case d.long <= 0 || d.long > flood.MostDuration:
		return d, fmt.Errorf("--for %v: it must be more than 0 and at most %v", d.long, flood.MostDuration)
	case d.connections < 1 || d.connections > flood.MostConnections:
		return d, fmt.Errorf("--connections %d: there must be from 1 to %d", d.connections, flood.MostConnections)
	case d.bytes < 1 || d.bytes > flood.MostBytes:
		return d, fmt.Errorf("--bytes %d: there must be from 1 to %d", d.bytes, flood.MostBytes)
	}
	return d, nil
}

// floods floods a host of the running lab from another, and prints a line when that
// begins and one when it has ended.
func floods(args []string) int {
	d, err := parseFlood(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Println(floodUsage)
		return 0
	}
	if err != nil {
		return report(codeUsage, err)
	}
	path, err := lab.Find()
	if err != nil {
		return report(codeFailed, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if d.tied {
		ctx = tied(ctx)
	}
	if err := d.run(ctx, path); err != nil {
		return report(codeFailed, err)
	}
	return 0
}

// tied is a context that ends with ctx, and when the standard input does.
func tied(ctx context.Context) context.Context {
	ctx, stop := context.WithCancel(ctx)
	go func() { // for the life of this process
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return ctx
}

func (d deluge) run(ctx context.Context, path string) error {
	text, err := lab.Control(path, "hostfile")
	if err != nil {
		return err
	}
	addr, err := d.choose(text)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(addr, floodPort).String()
	with := strconv.FormatBool(d.apache)
	server, err := newEnd(path, d.host, asServer, at, strconv.FormatInt(d.bytes, 10), with)
	if err != nil {
		return err
	}
	defer server.stop()
	first, err := server.start()
	if err != nil {
		return fmt.Errorf("serve on host %s: %w", d.host, err)
	}
	fmt.Printf("flood of %s from %s: %s, %d connections, %v\n", d.host, d.from, first, d.connections, d.long)
	attacker, err := newEnd(path, d.from, asAttacker, "http://"+at+flood.Path, d.long.String(), strconv.Itoa(d.connections), with)
	if err != nil {
		return err
	}
	defer attacker.stop()
	stop := context.AfterFunc(ctx, attacker.end)
	defer stop()
	last, err := attacker.start()
	if err != nil {
		return fmt.Errorf("flood from host %s: %w", d.from, err)
	}
	fmt.Println(last)
	if err := server.finish(); err != nil {
		return fmt.Errorf("serve on host %s: %w", d.host, err)
	}
	return nil
}

// choose completes d: the attacker is, if nobody is named, the last of the hosts.
// It returns where the host serves, on a network that both are on.
func (d *deluge) choose(hostfile string) (netip.Addr, error) {
	var names []string
	on := map[string]map[string]netip.Addr{} // by host and network
	for line := range strings.Lines(hostfile) {
		words := strings.Fields(line)
		names = append(names, words[0])
		on[words[0]] = map[string]netip.Addr{}
		for _, w := range words[1:] {
			network, text, _ := strings.Cut(w, "=")
			if addr, err := netip.ParseAddr(text); err == nil && network != "slots" {
				on[words[0]][network] = addr
			}
		}
	}
	for _, h := range slices.Backward(names) {
		if d.from == "" && h != d.host {
			d.from = h
		}
	}
	for _, h := range []string{d.host, d.from} {
		if on[h] == nil {
			return netip.Addr{}, fmt.Errorf("no host %q: there are %s", h, strings.Join(names, ", "))
		}
	}
	if d.host == d.from {
		return netip.Addr{}, fmt.Errorf("host %s cannot flood itself: say from which other host", d.host)
	}
	for _, w := range strings.Fields(hostfile) { // in the order of the lab's networks
		network, _, _ := strings.Cut(w, "=")
		if _, both := on[d.from][network]; both {
			if addr, ok := on[d.host][network]; ok {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("hosts %s and %s are on no network together", d.host, d.from)
}

// An end of a flood is a process on a host.
type end struct {
	cmd    *exec.Cmd
	tie    io.Closer // its standard input
	out    io.Reader
	errors bytes.Buffer
}

func newEnd(path, host string, words ...string) (*end, error) {
	const self = "/proc/self/exe"
	e := &end{cmd: exec.Command(self, append([]string{"exec", host, self}, words...)...)}
	e.cmd.Env = append(os.Environ(), lab.Variable+"="+path)
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is not for it
	e.cmd.Stderr = &e.errors
	var err error
	if e.tie, err = e.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	e.out, err = e.cmd.StdoutPipe()
	return e, err
}

// start starts e and returns the first line that it prints. An error means that it
// has printed none.
func (e *end) start() (string, error) {
	if err := e.cmd.Start(); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(e.out).ReadString('\n')
	if err != nil {
		e.stop()
		return "", e.said()
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// end has e end.
func (e *end) end() { e.tie.Close() }

// finish ends e, waits for it, and returns why it had failed before, if it had.
func (e *end) finish() error {
	e.end()
	if err := e.cmd.Wait(); err != nil {
		return e.said()
	}
	return nil
}

// said is what e has written of why it failed.
func (e *end) said() error {
	return errors.New(strings.TrimSpace(strings.ReplaceAll(e.errors.String(), "mpivlab: ", "")))
}

// stop ends e and waits for it. Twice is harmless.
func (e *end) stop() {
	e.end()
	_ = e.cmd.Wait()
}

// serveFlood is the end that serves: ADDRESS BYTES APACHE.
func serveFlood(args []string) error {
	at, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	ctx := tied(context.Background())
	if args[2] == "true" {
		return flood.ServeApache(ctx, at, bytes, func() { fmt.Printf("apache serves at %v\n", at) })
	}
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return err
	}
	fmt.Printf("it serves at %v\n", at)
	return flood.Serve(ctx, l, bytes)
}

// attackFlood is the other end: URL DURATION CONNECTIONS AB.
func attackFlood(args []string) error {
	long, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	attack := flood.Attack
	if args[3] == "true" {
		attack = flood.AttackAB
	}
	r, err := attack(tied(context.Background()), flood.Options{URL: args[0], Connections: n, Duration: long, Allow: labNetworks})
	if err == nil {
		fmt.Println(r)
	}
	return err
}
