package buddy

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who comes from a host of the job and breaks off is an agent's that was cut off; who says what no
// agent says, or comes from elsewhere, is a stranger.
func TestAnAgentThatIsCutOffIsNoStranger(t *testing.T) {
	two := neighbours(t, 2)
	here, there := two[1], two[0]
	visit := func(from, say string) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", here.asBuddy().Addrs[0])
		require.NoError(t, err)
		_, err = c.Write([]byte(say))
		require.NoError(t, err)
		c.(*net.TCPConn).CloseWrite()
		c.Read(make([]byte, 1)) // it is over there, too
		c.Close()
	}
	line, err := there.dial(here.asBuddy().Addrs[0], here.index)
	require.NoError(t, err)
	defer line.Close()
	require.Eventually(t, func() bool {
		here.mu.Lock()
		defer here.mu.Unlock()
		return here.from[netip.MustParseAddr("127.0.0.1")]
	}, 20*time.Second, time.Millisecond)
	hello := "\x16\x03\x01\x02\x00\x01"
	visit("127.0.0.1", hello)
	visit("127.0.0.2", hello)
	visit("127.0.0.1", "GET / HTTP/1.0")
	for _, want := range []string{"^127.0.0.2:.* it hung up", "^127.0.0.1:.* first bytes are not"} { // in the order of the visits
		select {
		case m := <-here.told:
			require.NotNil(t, m.Refused)
			require.Regexp(t, want, m.Refused.Reason)
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody was told of %s", want)
		}
	}
	require.EqualValues(t, 2, here.strangers.Load())
}
