package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

func TestHeaderSurvives(t *testing.T) {
	h := Header{Kind: Offer, Check: 0xBEEF, Context: 1<<32 - 1, Source: 1<<31 - 1, Dest: 7,
		Tag: 1<<31 - 1, Epoch: 1<<32 - 1, Seq: 1<<64 - 1, Ack: 1 << 63}
	var b [HeaderLen]byte
	h.Put(b[:])
	var got Header
	require.NoError(t, got.Parse(b[:]))
	require.Equal(t, h, got)
}

func TestHeaderRefuses(t *testing.T) {
	good := Header{Kind: Eager}
	tests := []struct {
		name string
		bad  func(b []byte) []byte
		want error
	}{
		{"too few bytes", func(b []byte) []byte { return b[:HeaderLen-1] }, ErrShort},
		{"no kind", func(b []byte) []byte { b[0] = 0; return b }, ErrFormat},
		{"an unknown kind", func(b []byte) []byte { b[0] = byte(kinds); return b }, ErrFormat},
		{"an unknown flag", func(b []byte) []byte { b[1] = 0x80; return b }, ErrFormat},
		{"a negative source", func(b []byte) []byte { b[11] = 0x80; return b }, ErrFormat},
		{"a negative destination", func(b []byte) []byte { b[15] = 0x80; return b }, ErrFormat},
		{"a negative tag", func(b []byte) []byte { b[19] = 0x80; return b }, ErrFormat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b [HeaderLen]byte
			good.Put(b[:])
			var h Header
			require.ErrorIs(t, h.Parse(tt.bad(b[:])), tt.want)
		})
	}
}

func FuzzHeader(f *testing.F) {
	var b [HeaderLen]byte
	(&Header{Kind: Data, Source: 1, Dest: 2, Seq: 3, Ack: 4}).Put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var h Header
		if h.Parse(in) != nil {
			return
		}
		var out [HeaderLen]byte
		h.Put(out[:])
		if !bytes.Equal(out[:], in[:HeaderLen]) {
			t.Fatalf("Put(Parse(%x)) = %x", in[:HeaderLen], out)
		}
	})
}

func FuzzBodies(f *testing.F) {
	var b [EnvelopeLen]byte
	(&Envelope{Length: 5, Fetch: true}).Put(b[:])
	f.Add(b[:])
	f.Add([]byte("mpiv\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		same := func(what string, n int, put func([]byte)) {
			out := make([]byte, n)
			put(out)
			if !bytes.Equal(out, in[:n]) {
				t.Fatalf("%s: parsed %x, printed %x", what, in[:n], out)
			}
		}
		if g, err := ParseGreeting(in); err == nil {
			same("greeting", GreetingLen, g.Put)
		}
		var e Envelope
		if e.Parse(in) == nil {
			same("envelope", EnvelopeLen, e.Put)
		}
		if s, err := ParseSpan(in); err == nil {
			same("span", SpanLen, s.Put)
		}
		if a, _, err := ParseStreamAck(in); err == nil {
			same("stream ack", StreamAckLen, a.Put)
		}
	})
}

// A message is numbered where networks look for a count.
func TestTheNumberIsTheCount(t *testing.T) {
	h := Header{Kind: Eager, Seq: 0x0102030405060708}
	var b [HeaderLen]byte
	h.Put(b[:])
	require.Len(t, b, transport.HeaderLen)
	require.Equal(t, h.Seq, binary.LittleEndian.Uint64(b[transport.CountAt:]))
}
