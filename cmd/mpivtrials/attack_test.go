//go:build linux

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
)

// TestInitialKeys compares with the sample of RFC 9001, appendix A.1 and A.2.
func TestInitialKeys(t *testing.T) {
	var dst, src [8]byte
	_, err := hex.Decode(dst[:], []byte("8394c8f03e515708"))
	require.NoError(t, err)
	b, err := initial(dst, src, []byte("hello"))
	require.NoError(t, err)
	require.Len(t, b, initialBytes)
	require.Equal(t, "0000000108"+"8394c8f03e515708"+"08", hex.EncodeToString(b[1:15]))

	secret, err := hex.DecodeString("7db5df06e7a69e432496adedb00851923595221596ae2ae9fb8115c1e9ed0a44")
	require.NoError(t, err)
	client, err := expand(secret, "client in", 32)
	require.NoError(t, err)
	require.Equal(t, "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea", hex.EncodeToString(client))
	key, err := expand(client, "quic key", 16)
	require.NoError(t, err)
	require.Equal(t, "1f369613dd76d5467730efcbe3b1a22d", hex.EncodeToString(key))
}

// TestAServerAnswersAnInitial shows that a server takes it for a client's.
func TestAServerAnswersAnInitial(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, public, private)
	require.NoError(t, err)
	ln, err := quic.ListenAddr("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: private}}, NextProtos: []string{"mpiv"}}, nil)
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("udp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	src := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	hello, err := quicHello(src)
	require.NoError(t, err)
	b, err := initial([8]byte{8, 7, 6, 5, 4, 3, 2, 1}, src, hello)
	require.NoError(t, err)
	_, err = c.Write(b)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer := make([]byte, 2048)
	n, err := c.Read(answer)
	require.NoError(t, err)
	require.Greater(t, n, 14)
	require.Equal(t, src[:], answer[6:14], "it is for whom the Initial said it was from")
}

func TestHellos(t *testing.T) {
	tcp, err := clientHello()
	require.NoError(t, err)
	require.Equal(t, []byte{22, 3, 1}, tcp[:3], "a handshake record")
	require.EqualValues(t, 1, tcp[5], "a ClientHello")
	require.Equal(t, len(tcp)-5, int(tcp[3])<<8|int(tcp[4]), "whole")
	quic, err := quicHello([8]byte{})
	require.NoError(t, err)
	require.EqualValues(t, 1, quic[0], "a ClientHello")
}

// TestHalfOpen: half of a hello comes on every connection that was answered, and the
// connection is reset when the attack is over.
func TestHalfOpen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var said, reset atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				b := make([]byte, 1<<16)
				if n, _ := c.Read(b); n > 11 && b[0] == 22 && b[5] == 1 && 5+int(b[3])<<8+int(b[4]) > n {
					said.Add(1)
				}
				if _, err := c.Read(b); errors.Is(err, syscall.ECONNRESET) {
					reset.Add(1)
				}
			})
		}
	})
	a := attacker{targets: []string{ln.Addr().String()}}
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	halfOpen(ctx, &a)
	require.NoError(t, ln.Close())
	all.Wait()
	require.NotZero(t, a.met.Load(), "of %d tries", a.tries.Load())
	require.NotZero(t, said.Load())
	require.LessOrEqual(t, said.Load(), a.met.Load())
	require.NotZero(t, reset.Load())
	require.Zero(t, a.errors.Load())
}

func TestSegment(t *testing.T) {
	b := segment(netip.MustParseAddrPort("10.1.0.100:1234"), netip.MustParseAddrPort("10.1.0.1:80"), 7)
	pseudo := append(append([]byte{}, b[12:20]...), 0, 6, 0, 20)
	require.Zero(t, checksum(append(pseudo, b[20:]...)), "with the checksum in it the sum is zero")
	require.EqualValues(t, 2, b[33], "SYN")
}

func TestPick(t *testing.T) {
	own := netip.MustParseAddr("10.1.0.1")
	var open ports
	for _, s := range []string{"10.1.0.1:10", "0.0.0.0:20", "[::]:20", "10.2.0.1:30"} {
		open.tcp = append(open.tcp, netip.MustParseAddrPort(s))
	}
	require.Equal(t, "10.1.0.1:10 10.1.0.1:20", strings.Join(pick(open, own, false), " "))
	require.Empty(t, pick(open, own, true))
}
