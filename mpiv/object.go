package mpiv

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/mpiv/mpiv/internal/engine"
)

// ErrObject: a value could not be encoded, or a message not be decoded as the
// type that was asked for.
var ErrObject = errors.New("value cannot be encoded or decoded")

// encode is v in the format of encoding/gob. It is wrapped so that zero values
// and pointers may be sent too.
func encode[V any](v V) ([]byte, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(envelope[V]{v}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrObject, unwrapped[V](err))
	}
	return b.Bytes(), nil
}

func decode[V any](b []byte) (v V, err error) {
	var e envelope[V]
	if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&e); err != nil {
		return v, fmt.Errorf("%w: %w", ErrObject, unwrapped[V](err))
	}
	return e.V, nil
}

type envelope[V any] struct{ V V }

// ofSender is how gob names the type of what was sent, where that is not the receiver's.
var ofSender = regexp.MustCompile(`received field envelope\[(.*)\]\.V$`)

// unwrapped is an error of gob without the wrapping, of which the program knows nothing.
func unwrapped[V any](err error) error {
	text := strings.ReplaceAll(err.Error(), reflect.TypeFor[envelope[V]]().String(), reflect.TypeFor[V]().String())
	if text = ofSender.ReplaceAllString(text, "a received $1"); text == err.Error() {
		return err
	}
	return errors.New(text)
}

// isObject tells whether b is of encode, for whatever type.
func isObject(b []byte) bool {
	return gob.NewDecoder(bytes.NewReader(b)).DecodeValue(reflect.Value{}) == nil
}

// SendObj is Send of any value that encoding/gob can encode; RecvObj receives
// it. A value in an interface needs gob.Register.
func SendObj[V any](ctx context.Context, c *Comm, v V, to, tag int) error {
	b, err := encode(v)
	if err != nil {
		return c.fail("SendObj", to, tag, err)
	}
	return c.send(ctx, &callSendObj, b, nil, to, tag, engine.Standard)
}

// IsendObj starts a SendObj. The value is encoded before it returns.
func IsendObj[V any](c *Comm, v V, to, tag int) Request {
	b, err := encode(v)
	if err != nil {
		return c.failed("IsendObj", to, tag, err)
	}
	return c.isend("IsendObj", b, nil, to, tag, engine.Standard)
}

// RecvObj receives a value that SendObj sent.
func RecvObj[V any](ctx context.Context, c *Comm, from, tag int) (V, Status, error) {
	var none V
	b, s, err := recvAlloc[byte](ctx, c, &callRecvObj, from, tag)
	if err != nil {
		return none, s, err
	}
	if s.Source == ProcNull {
		return none, s, nil
	}
	v, err := decode[V](b)
	if err != nil && !isObject(b) {
		err = fmt.Errorf("%w; was it sent with SendObj?", err)
	}
	return v, s, c.wrap("RecvObj", s.Source, s.Tag, err)
}

// BcastObj returns the v of root on all ranks. On the others v is not used.
func BcastObj[V any](ctx context.Context, c *Comm, v V, root int) (V, error) {
	s := c.begin(ctx, opBcastObj, root)
	defer s.done(nil)
	var b []byte
	if c.rank == root {
		var err error
		if b, err = encode(v); err != nil {
			return v, errors.Join(s.wrap(-1, err), s.bcastAny(nil, -1, root))
		}
	}
	n := len(b)
	if err := s.bcastAny(&b, n, root); err != nil || c.rank == root {
		return v, err
	}
	got, err := decode[V](b)
	return got, s.wrap(root, err)
}

// wrap says whose value made err; nil if there is none. The collective goes on:
// the other ranks learn of it in its messages.
func (s *series) wrap(peer int, err error) error { return s.c.wrap(s.call.Op, peer, -1, err) }

// bcastAny broadcasts n bytes, a length that only root knows; there -1 says
// that it has none to send.
func (s *series) bcastAny(b *[]byte, n, root int) error {
	length := [1]int64{int64(n)}
	if err := s.bcast(bytesOf(length[:]), true, root); err != nil {
		return err
	}
	if length[0] < 0 {
		if s.c.rank == root {
			return nil
		}
		return s.wrap(root, fmt.Errorf("%w: rank %d could not", ErrObject, root))
	}
	if s.c.rank != root {
		*b = make([]byte, length[0])
	}
	return s.bcast(*b, true, root)
}

// GatherObj returns the v of all ranks, in rank order, on root, and nil on the
// others.
func GatherObj[V any](ctx context.Context, c *Comm, v V, root int) ([]V, error) {
	s := c.begin(ctx, opGatherObj, root)
	defer s.done(nil)
	b, mistake := encode(v)
	lengths := make([]int64, c.size)
	length := [1]int64{int64(len(b))}
	if mistake != nil {
		length[0] = -1
	}
	if err := s.gather(bytesOf(length[:]), bytesOf(lengths), 8, 1, c.size, true, root); err != nil {
		return nil, err
	}
	if mistake != nil {
		b = nil
	}
	if c.rank != root {
		if err := s.send(b, root); err != nil {
			return nil, err
		}
		return nil, s.wrap(-1, mistake)
	}
	counts, total := sumLengths(lengths)
	all := make([]byte, total)
	if err := s.gatherv(b, all, 1, len(b), total, true, counts, nil, root); err != nil {
		return nil, err
	}
	if mistake != nil {
		return nil, s.wrap(-1, mistake)
	}
	return decodeAll[V](s, all, lengths)
}

// sumLengths is lengths as counts; those that say -1 count nothing.
func sumLengths(lengths []int64) (counts []int, total int) {
	counts = make([]int, len(lengths))
	for i, n := range lengths {
		counts[i] = int(max(n, 0))
		total += counts[i]
	}
	return counts, total
}

func decodeAll[V any](s series, all []byte, lengths []int64) ([]V, error) {
	out := make([]V, len(lengths))
	for i, n := range lengths {
		if n < 0 {
			return nil, s.wrap(i, fmt.Errorf("%w: rank %d could not", ErrObject, i))
		}
		v, err := decode[V](all[:n])
		if err != nil {
			return nil, s.wrap(i, err)
		}
		out[i], all = v, all[n:]
	}
	return out, nil
}

// AllgatherObj is GatherObj to all ranks.
func AllgatherObj[V any](ctx context.Context, c *Comm, v V) ([]V, error) {
	s := c.begin(ctx, opAllgatherObj, -1)
	defer s.done(nil)
	b, mistake := encode(v)
	lengths := make([]int64, c.size)
	length := [1]int64{int64(len(b))}
	if mistake != nil {
		b, length[0] = nil, -1
	}
	if err := s.allgather(bytesOf(length[:]), bytesOf(lengths), 8, 1, c.size, true); err != nil {
		return nil, err
	}
	counts, total := sumLengths(lengths)
	all := make([]byte, total)
	if err := s.allgatherv(b, all, 1, len(b), total, true, counts, nil); err != nil {
		return nil, err
	}
	if mistake != nil {
		return nil, s.wrap(-1, mistake)
	}
	return decodeAll[V](s, all, lengths)
}

// ScatterObj returns vs[Rank()] of root. len(vs) is Size() on root; on the
// others vs is not used.
func ScatterObj[V any](ctx context.Context, c *Comm, vs []V, root int) (V, error) {
	s := c.begin(ctx, opScatterObj, root)
	defer s.done(nil)
	var (
		none    V
		all     []byte
		mistake error
	)
	counts := make([]int, c.size)
	lengths := make([]int64, c.size)
	if c.rank == root {
		if len(vs) != c.size {
			mistake = s.wrap(-1, fmt.Errorf("%w: len(vs) is %d, want %d", ErrCount, len(vs), c.size))
		}
		for i := 0; i < len(vs) && mistake == nil; i++ {
			b, err := encode(vs[i])
			if err != nil {
				mistake = s.wrap(i, err)
			}
			counts[i], lengths[i] = len(b), int64(len(b))
			all = append(all, b...)
		}
		if mistake != nil {
			all = nil
			for i := range lengths {
				counts[i], lengths[i] = 0, -1
			}
		}
	}
	var length [1]int64
	if err := s.scatter(bytesOf(lengths), bytesOf(length[:]), 8, c.size, 1, true, root); err != nil {
		return none, err
	}
	b := make([]byte, max(length[0], 0))
	if err := s.scatterv(all, b, 1, len(all), len(b), true, counts, nil, root); err != nil {
		return none, err
	}
	switch {
	case mistake != nil:
		return none, mistake
	case length[0] < 0:
		return none, s.wrap(root, fmt.Errorf("%w: rank %d could not", ErrObject, root))
	}
	v, err := decode[V](b)
	return v, s.wrap(root, err)
}
