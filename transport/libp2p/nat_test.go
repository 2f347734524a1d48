//go:build linux

package libp2p_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
)

// roleVariable makes this test binary one process of TestTwoPrivateNetworks.
const roleVariable = "LIBP2P_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	lab.Main(m)
}

// orders are what a process of the test is told on its standard input.
type orders struct {
	Credentials identity.Credentials
	Address     string
	Relays      []string
	Peer        string
}

// natMessages go to and fro between the private networks.
const natMessages, natBytes = 200, 20000

// play is what a process does. It prints its address first, and ends with its
// standard input.
func play(role string) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	id, err := o.Credentials.Open()
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	defer stop()
	site := transport.Site{Address: o.Address, TLS: id.TLS(), Relays: o.Relays}
	if role == "crowd" {
		return crowd(ctx, site)
	}
	if role == "relay" {
		e, err := libp2p.Network().Listen(ctx, site)
		if err != nil {
			return err
		}
		defer e.Close()
		fmt.Println(e.Addr())
		io.Copy(io.Discard, in)
		return nil
	}
	e, err := libp2p.Network().Listen(ctx, site)
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println(e.Addr())
	if role == "answers" {
		c, err := e.Accept(ctx)
		if err != nil {
			return err
		}
		if err := talk(c, true); err != nil {
			return err
		}
		io.Copy(io.Discard, in) // the last answer may be on its way
		return nil
	}
	c, err := e.Dial(ctx, transport.Addr(o.Peer))
	if err != nil {
		return err
	}
	name, err := id.Verify(c.(transport.Authenticated).Certificate())
	if err != nil {
		return err
	}
	if err := talk(c, false); err != nil {
		return err
	}
	fmt.Println("talked to", name)
	return nil
}

// crowd dials one endpoint from many others of the same host.
func crowd(ctx context.Context, site transport.Site) error {
	open := transport.Site{Address: site.Address}
	hub, err := libp2p.Network().Listen(ctx, open)
	if err != nil {
		return err
	}
	defer hub.Close()
	var conns []transport.Conn
	for i := range 80 {
		e, err := libp2p.Network().Listen(ctx, open)
		if err != nil {
			return err
		}
		defer e.Close()
		ctx, stop := context.WithTimeout(ctx, 4*time.Second)
		defer stop()
		if _, err := e.Dial(ctx, hub.Addr()); err != nil {
			return fmt.Errorf("process %d: %w", i, err)
		}
		c, err := hub.Accept(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	for i, c := range conns {
		if _, err := c.Poll(new(box)); err != nil {
			return fmt.Errorf("process %d was there: %w", i, err)
		}
	}
	fmt.Println("all are there")
	return nil
}

// talk sends numbered messages and gets them back, or answers.
func talk(c transport.Conn, answers bool) error {
	in := new(box)
	await := func(n int) (string, error) {
		for end := time.Now().Add(30 * time.Second); len(in.got) < n; time.Sleep(100 * time.Microsecond) {
			if _, err := c.Poll(in); err != nil {
				return "", err
			}
			if time.Now().After(end) {
				return "", fmt.Errorf("message %d did not come", n)
			}
		}
		return in.got[n-1], nil
	}
	send := func(text string) error {
		err := transport.ErrFull
		for end := time.Now().Add(30 * time.Second); err == transport.ErrFull && time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
			err = c.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Body: []byte(text)})
			if _, perr := c.Poll(in); perr != nil {
				return perr
			}
		}
		if err == nil {
			err = c.Flush()
		}
		return err
	}
	for i := range natMessages {
		want := fmt.Sprintf("%d %s", i, strings.Repeat("x", natBytes))
		if !answers {
			if err := send(want); err != nil {
				return err
			}
		}
		got, err := await(i + 1)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("message %d begins with %.10q", i, got)
		}
		if answers {
			if err := send(got); err != nil {
				return err
			}
		}
	}
	return nil
}

// X and Y are behind address translations of their own, and have only a relay,
// R, in common.
func TestTwoPrivateNetworks(t *testing.T) {
	l := lab.ForTest(t, lab.Options{
		Hosts:    []lab.Host{{Name: "R", Networks: []string{"lan"}}, {Name: "X", Networks: []string{"home"}}, {Name: "Y", Networks: []string{"office"}}},
		Networks: []lab.Network{{Name: "lan"}, {Name: "home", Behind: "lan"}, {Name: "office", Behind: "lan"}},
	})
	self, err := os.Executable()
	require.NoError(t, err)
	a := authority(t)
	// start returns the first line that the process prints, and what waits for
	// the rest after its input has ended.
	start := func(host, role string, index int, o orders) (addr string, rest func() string) {
		c := l.Command(t.Context(), host, self)
		c.Env = append(os.Environ(), roleVariable+"="+role)
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		require.NoError(t, err)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		o.Credentials, err = a.Issue(identity.Process, index)
		require.NoError(t, err)
		require.NoError(t, json.NewEncoder(in).Encode(o))
		lines := bufio.NewReader(out)
		addr, err = lines.ReadString('\n')
		require.NoError(t, err, "%s on %s", role, host)
		return strings.TrimSpace(addr), func() string {
			if role != "asks" {
				in.Close()
			}
			text, err := io.ReadAll(lines)
			require.NoError(t, err)
			require.NoError(t, c.Wait(), "%s on %s", role, host)
			in.Close()
			return string(text)
		}
	}
	at, err := l.Addr("R", "lan")
	require.NoError(t, err)
	relay, endRelay := start("R", "relay", 0, orders{Address: at.String()})
	relays := []string{relay}
	all, endCrowd := start("R", "crowd", 4, orders{Address: at.String()})
	require.Equal(t, "all are there", all, "processes of one host")
	endCrowd()
	_, err = l.Dial(t.Context(), "X", "tcp", "10.3.0.3:1")
	require.Error(t, err, "X reaches Y without a relay")
	y, endY := start("Y", "answers", 1, orders{Relays: relays})
	_, endX := start("X", "asks", 2, orders{Relays: relays, Peer: y})
	require.Equal(t, "talked to mpiv://job/process/1\n", endX())
	endY()
	endRelay()
}
