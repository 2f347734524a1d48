//go:build unix

package quic_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"syscall"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
)

// BenchmarkRoundTrip is half the round trip of a message between ends that sleep
// when there is nothing to do. Ends that spin, as the suite's do, would need two
// more cores than this one process has threads for.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{8, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			near, far := pair(b, quic.Options{}, quic.Options{})
			m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size)}
			send := func(c transport.Conn) {
				if err := errors.Join(c.Send(m), c.Flush()); err != nil {
					b.Error(err)
				}
			}
			turns := b.N
			done := make(chan struct{})
			go func() {
				defer close(done)
				in := &keeper{buf: make([]byte, mib)}
				for i := range turns {
					poll(b, far, in, func() bool { return in.n > i })
					send(far)
				}
			}()
			in := &keeper{buf: make([]byte, mib)}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range turns {
				send(near)
				poll(b, near, in, func() bool { return in.n > i })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half-rtt")
			<-done
		})
	}
}

const mib = 1 << 20

// A lane is something that carries n MiB from one end to the other, in messages
// of 1 MiB, and returns when all are there.
type lane func(n int)

// BenchmarkStream is 1 MiB messages in one direction as fast as they go, over
// this transport and over quic-go alone, in turns of 16 messages: other work on
// the machine meets both. An op is a message of each. cpu-ratio compares the time
// on a core that the two need, which other work changes least.
func BenchmarkStream(b *testing.B) {
	ours, alone := stream(b), bare(b)
	ours(16) // to the windows they grow to
	alone(16)
	var took, used [2]time.Duration
	b.SetBytes(2 * mib)
	b.ResetTimer()
	for left := b.N; left > 0; left -= 16 {
		n := min(16, left)
		for i, l := range []lane{ours, alone} {
			start, c := time.Now(), cpu()
			l(n)
			took[i] += time.Since(start)
			used[i] += cpu() - c
		}
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * mib / d.Seconds() / 1e6 }
	b.ReportMetric(rate(took[0]), "MB/s-mpiv")
	b.ReportMetric(rate(took[1]), "MB/s-quic-go")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
	b.ReportMetric(used[1].Seconds()/used[0].Seconds(), "cpu-ratio")
}

// cpu is what this process has used of the cores.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// keeper is a Receiver that counts what arrives: each message of 1 MiB, in parts,
// in one place.
type keeper struct {
	buf     []byte
	part, n int
}

func (k *keeper) Place(_ []byte, n int) []byte     { return k.buf[k.n*k.part%mib:][:n] }
func (k *keeper) Receive(header, body []byte) bool { return transport.Receive(k, header, body) }
func (k *keeper) Arrived(_, _ []byte)              { k.n++ }
func (k *keeper) Pulled(uint64, error)             {}

// poll polls c until ok, and sleeps when there is nothing to do: so no core is
// taken from quic-go, which needs both.
func poll(b *testing.B, c transport.Conn, in transport.Receiver, ok func() bool) {
	woken := make(chan struct{}, 1)
	wake := func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}
	for !ok() {
		moved, err := c.Poll(in)
		if err != nil {
			b.Error(err)
			return
		}
		if !moved {
			c.Arm(wake)
			<-woken
		}
	}
}

func stream(b *testing.B) lane {
	near, far := pair(b, quic.Options{}, quic.Options{})
	from, to := make([]byte, mib), make([]byte, mib)
	part := near.MaxBody()
	in, none := &keeper{buf: to, part: part}, new(keeper)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Bulk: true}
	return func(n int) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			want := in.n + n*mib/part
			poll(b, far, in, func() bool { return in.n == want })
		}()
		for i := range n * mib / part {
			m.Body = from[i*part%mib:][:part]
			poll(b, near, none, func() bool {
				err := near.Send(m)
				if err != nil && !errors.Is(err, transport.ErrFull) {
					b.Fatal(err)
				}
				return err == nil
			})
		}
		<-done
	}
}

// bare is quic-go with the settings of this transport.
func bare(b *testing.B) lane {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(b, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(b, err)
	conf := &tls.Config{
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		InsecureSkipVerify: true, NextProtos: []string{"bare"},
	}
	windows := &quicgo.Config{
		InitialStreamReceiveWindow: 256 << 10, MaxStreamReceiveWindow: 16 << 20,
		InitialConnectionReceiveWindow: 512 << 10, MaxConnectionReceiveWindow: 32 << 20,
	}
	open := func() *quicgo.Transport {
		udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(b, err)
		t := &quicgo.Transport{Conn: udp}
		b.Cleanup(func() { t.Close(); udp.Close() })
		return t
	}
	ctx, stop := context.WithTimeout(b.Context(), 10*time.Second)
	defer stop()
	x, y := open(), open()
	ln, err := y.Listen(conf, windows)
	require.NoError(b, err)
	q, err := x.Dial(ctx, y.Conn.LocalAddr(), conf, windows)
	require.NoError(b, err)
	out, err := q.OpenStreamSync(ctx)
	require.NoError(b, err)
	_, err = out.Write([]byte{1})
	require.NoError(b, err)
	p, err := ln.Accept(ctx)
	require.NoError(b, err)
	in, err := p.AcceptStream(ctx)
	require.NoError(b, err)
	from, to := make([]byte, mib), make([]byte, mib)
	_, err = io.ReadFull(in, to[:1])
	require.NoError(b, err)
	return func(n int) {
		done := make(chan error, 1)
		go func() {
			for range n {
				if _, err := io.ReadFull(in, to); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for range n {
			if _, err := out.Write(from); err != nil {
				b.Fatal(err)
			}
		}
		require.NoError(b, <-done)
	}
}
