//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

func message(body string) transport.Message {
	return transport.Message{Header: make([]byte, transport.HeaderLen), Body: []byte(body)}
}

func TestTheForgerIsUnderstood(t *testing.T) {
	for lane := range 2 {
		c, lanes := forgers(t)
		in := &recorder{limit: 10}
		lanes[lane].write(lanes[lane].seal(dataRecord, frameOf(3, []byte("abc"))))
		eventually(t, "the message", func() bool { poll(t, c, in); return len(in.log) > 0 })
		require.Equal(t, arrived(nil, make([]byte, transport.HeaderLen), []byte("abc")), in.log)
	}
}

func poll(t *testing.T, c transport.Conn, in transport.Receiver) {
	_, err := c.Poll(in)
	require.NoError(t, err)
}

func TestForgedRecordsBreakTheConnection(t *testing.T) {
	frame := frameOf(3, []byte("abc"))
	tests := map[string]func(f *forger) []byte{
		"a bit is another":                func(f *forger) []byte { r := f.seal(dataRecord, frame); r[20] ^= 1; return r },
		"the length is another":           func(f *forger) []byte { r := f.seal(dataRecord, frame); r[4]--; return r },
		"a record again":                  func(f *forger) []byte { r := f.seal(dataRecord, frame[:5]); return append(r, r...) },
		"a record is left out":            func(f *forger) []byte { f.seal(dataRecord, frame); return f.seal(dataRecord, frame) },
		"other keys":                      func(f *forger) []byte { f.out.update(f.t); return f.seal(dataRecord, frame) },
		"in clear":                        func(*forger) []byte { return append([]byte{dataRecord, 3, 3, 0, byte(len(frame))}, frame...) },
		"longer than any":                 func(*forger) []byte { return []byte{dataRecord, 3, 3, 0xff, 0xff} },
		"of another version":              func(f *forger) []byte { r := f.seal(dataRecord, frame); r[2] = 1; return r },
		"of no type":                      func(f *forger) []byte { return f.seal(99, frame) },
		"noise":                           func(*forger) []byte { return bytes.Repeat([]byte("noise"), 100) },
		"nothing but padding":             func(f *forger) []byte { return f.seal(0, make([]byte, 100)) },
		"empty records without end":       func(f *forger) []byte { return many(50, func() []byte { return f.seal(dataRecord, nil) }) },
		"a handshake message of no type":  func(f *forger) []byte { return f.seal(handshakeRecord, []byte{77, 0, 0, 0}) },
		"a handshake message without end": func(f *forger) []byte { return f.seal(handshakeRecord, []byte{keyUpdate, 255, 255, 255}) },
		"a message within a handshake one": func(f *forger) []byte {
			return append(f.seal(handshakeRecord, []byte{keyUpdate, 0}), f.seal(dataRecord, frame)...)
		},
		"an alert":           func(f *forger) []byte { return f.seal(alertRecord, []byte{2, 20}) },
		"a word of farewell": func(f *forger) []byte { return f.seal(alertRecord, []byte{1, 0}) },
		"a lying frame":      func(f *forger) []byte { return f.seal(dataRecord, frameOf(maxBody+1, nil)) },
	}
	for name, forged := range tests {
		t.Run(name, func(t *testing.T) {
			for lane := range 2 {
				c, lanes := forgers(t)
				f := lanes[lane]
				f.write(f.seal(dataRecord, frame), forged(f))
				in := new(box)
				err := pollUntilError(t, c, in)
				require.ErrorIs(t, err, transport.ErrBroken)
				require.Equal(t, 1, in.got, "of the messages before and after the forgery")
				woken := make(chan struct{})
				c.Arm(func() { close(woken) })
				<-woken
				_, err = io.Copy(io.Discard, f.sock)
				require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the forger is still connected")
			}
		})
	}
}

func many(n int, f func() []byte) (b []byte) {
	for range n {
		b = append(b, f()...)
	}
	return b
}

func TestAForgerIsToldWhy(t *testing.T) {
	c, lanes := forgers(t)
	f := lanes[0]
	r := f.seal(dataRecord, frameOf(0, nil))
	r[10] ^= 1
	f.write(r)
	pollUntilError(t, c, new(box))
	typ, alert := f.read()
	require.EqualValues(t, alertRecord, typ)
	require.Equal(t, []byte{2, 20}, alert, "bad_record_mac")
}

func TestATruncatedStreamBreaksTheConnection(t *testing.T) {
	frame := frameOf(40_000, make([]byte, 40_000))
	for lane := range 2 {
		for _, missing := range []int{1, 3, 100, 16_385, 30_000} {
			c, lanes := forgers(t)
			f := lanes[lane]
			var b []byte
			for rest := frame; len(rest) > 0; rest = rest[min(len(rest), maxRecord):] {
				b = append(b, f.seal(dataRecord, rest[:min(len(rest), maxRecord)])...)
			}
			f.write(b[:len(b)-missing])
			require.NoError(t, f.sock.Close())
			in := new(box)
			require.ErrorIs(t, pollUntilError(t, c, in), transport.ErrBroken)
			require.Zero(t, in.got, "a message of which a part is missing has arrived")
		}
	}
}

// Records may come in pieces of any length, and many at once.
func TestRecordsInPieces(t *testing.T) {
	for lane := range 2 {
		c, lanes := forgers(t)
		f := lanes[lane]
		in := new(box)
		var b []byte
		const n = 5
		for range n {
			b = append(b, f.seal(dataRecord, frameOf(50, make([]byte, 50)))...)
		}
		for len(b) > 0 {
			k := min(len(b), 7)
			f.write(b[:k])
			b = b[k:]
			time.Sleep(20 * time.Microsecond)
			poll(t, c, in)
		}
		eventually(t, "all messages", func() bool { poll(t, c, in); return in.got == n })
	}
}

// What a Poll leaves within TLS, where epoll does not see it, wakes who arms.
func TestWhatIsLeftBehindWakes(t *testing.T) {
	for lane := range 2 {
		c, lanes := forgers(t)
		f := lanes[lane]
		body := make([]byte, maxBody)
		const n = 2*pollBytes/maxBody + 3
		var b []byte
		for range n {
			for rest := frameOf(maxBody, body); len(rest) > 0; rest = rest[min(len(rest), maxRecord):] {
				b = append(b, f.seal(dataRecord, rest[:min(len(rest), maxRecord)])...)
			}
		}
		written := make(chan error, 1)
		go func() { _, err := f.sock.Write(b); written <- err }()
		in := new(box)
		for in.got < n {
			woken := make(chan struct{})
			c.Arm(func() { close(woken) })
			select {
			case <-woken:
			case <-time.After(10 * time.Second):
				t.Fatalf("%d of %d messages have arrived, and nobody is woken", in.got, n)
			}
			poll(t, c, in)
		}
		require.NoError(t, <-written)
	}
}

// What comes with the last of the handshake lies in the tls.Conn, where epoll does not see it.
func TestWhatComesWithTheHandshakeWakes(t *testing.T) {
	c, _ := forgers(t, frameOf(3, []byte("abc"))...)
	woken := make(chan struct{})
	c.Arm(func() { close(woken) })
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is woken")
	}
	in := new(box)
	poll(t, c, in)
	require.Equal(t, 1, in.got)
}

func TestSmallMessagesShareARecord(t *testing.T) {
	c, lanes := forgers(t)
	const n = 20
	for range n {
		require.NoError(t, c.Send(message("twelve bytes")))
	}
	require.NoError(t, c.Flush())
	_, b := lanes[0].read()
	require.Equal(t, bytes.Repeat(frameOf(12, []byte("twelve bytes")), n), b)

	require.NoError(t, c.Send(message("before")))
	large := make([]byte, 2*maxRecord+1000)
	require.NoError(t, c.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Body: large}))
	_, b = lanes[0].read()
	require.Equal(t, append(frameOf(6, []byte("before")), frameOf(uint64(len(large)), large[:1000])...), b)
	for range 2 {
		_, b = lanes[0].read()
		require.Len(t, b, maxRecord)
	}
}

func TestThePeersKeysChange(t *testing.T) {
	c, lanes := forgers(t)
	in := new(box)
	for lane, f := range lanes {
		for turn := range 3 {
			f.write(f.seal(dataRecord, frameOf(0, nil)), f.seal(handshakeRecord, []byte{keyUpdate, 0, 0, 1, 1}))
			f.out.update(t)
			f.write(f.seal(dataRecord, frameOf(0, nil)))
			want := 6*lane + 2*turn + 2
			eventually(t, "messages under both keys", func() bool { poll(t, c, in); return in.got == want })

			typ, b := f.read() // goes by itself
			require.EqualValues(t, handshakeRecord, typ)
			require.Equal(t, []byte{keyUpdate, 0, 0, 1, 0}, b, "a change of its own keys, without asking for another")
			f.in.update(t)
			m := message("under new keys")
			m.Bulk = lane == 1
			require.NoError(t, c.Send(m))
			require.NoError(t, c.Flush())
			_, b = f.read()
			require.Equal(t, frameOf(14, m.Body), b)
		}
	}
}

// A peer that has keys changed and does not read is not owed without end.
func TestAPeerThatChangesKeysWithoutReadingIsLeft(t *testing.T) {
	c, lanes := forgers(t)
	f := lanes[0]
	large := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, maxBody)}
	for c.Send(large) == nil {
	}
	var b []byte
	for range 5000 {
		b = append(b, f.seal(dataRecord, frameOf(0, nil))...)
		b = append(b, f.seal(handshakeRecord, []byte{keyUpdate, 0, 0, 1, 1})...)
		f.out.update(t)
	}
	written := make(chan struct{})
	go func() { f.sock.Write(b); close(written) }() // it may be hung up on
	w := c.(*Conn).lanes[0].sealed.wire
	eventually(t, "the end", func() bool {
		_, err := c.Poll(new(box))
		c.Send(large) // the kernel may have found more room
		require.True(t, err == nil || errors.Is(err, transport.ErrBroken), "%v", err)
		return err != nil
	})
	require.Equal(t, owedMost, cap(w.out))
	<-written
}
