package mpiv

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/migrate"
)

// ErrObject: a value could not be encoded, or a message not be decoded as the
// type that was asked for.
var ErrObject = errors.New("value cannot be encoded or decoded")

// byGob is the first byte of objects that encoding/gob has laid out, as package migrate
// refuses their type, and not for a tag that is misspelt. What migrate lays out never begins with it. The length and the name
// of the type follow, and then what gob wrote: nothing if the value is nil.
const byGob = 0

// errNoObject: a message is no object, whatever type was asked for.
var errNoObject = errors.New("what came is no object")

// encode is v as a message. A rank that goes on elsewhere must send the same bytes again;
// gob's hang on what the process has done before, so it has only what migrate refuses.
func encode[V any](v V) ([]byte, error) {
	b, err := migrate.Encode(&v)
	if errors.Is(err, migrate.ErrType) && !errors.Is(err, migrate.ErrTag) {
		b, err = encodeByGob(&v, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrObject, err)
	}
	return b, nil
}

// encodeByGob is *v as gob lays it out; why says that migrate does not.
func encodeByGob[V any](v *V, why error) ([]byte, error) {
	var b bytes.Buffer
	name := reflect.TypeFor[V]().String()
	b.WriteByte(byGob)
	b.Write(binary.AppendUvarint(nil, uint64(len(name))))
	b.WriteString(name)
	if leadsToNil(reflect.ValueOf(v).Elem()) { // which gob knows in fields alone
		return b.Bytes(), nil
	}
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return nil, fmt.Errorf("%w; %w", why, err)
	}
	return b.Bytes(), nil
}

// leadsToNil tells whether v is nil, or points to what is.
func leadsToNil(v reflect.Value) bool {
	for ; v.Kind() == reflect.Pointer; v = v.Elem() {
		if v.IsNil() {
			return true
		}
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Map, reflect.Slice:
		return v.IsNil()
	}
	return false
}

// decode reads what encode wrote. The error is ErrObject, and errNoObject too if encode
// has not written b.
func decode[V any](b []byte) (v V, err error) {
	if len(b) > 0 && b[0] == byGob {
		err = decodeByGob(b[1:], &v)
	} else if err = migrate.Decode(b, &v); errors.Is(err, migrate.ErrMalformed) {
		err = errNoObject
	}
	if err != nil {
		var none V
		return none, fmt.Errorf("%w: %w", ErrObject, err)
	}
	return v, nil
}

func decodeByGob[V any](b []byte, v *V) error {
	length, n := binary.Uvarint(b)
	if n <= 0 || length == 0 || length > uint64(len(b)-n) {
		return errNoObject
	}
	came, b, asked := string(b[n:n+int(length)]), b[n+int(length):], reflect.TypeFor[V]().String()
	switch {
	case len(b) > 0:
	case came == asked:
		return nil
	default:
		return fmt.Errorf("%s came, which is nil, and %s was asked for", came, asked)
	}
	err := gob.NewDecoder(bytes.NewReader(b)).Decode(v)
	switch {
	case err == nil:
		return nil
	case gob.NewDecoder(bytes.NewReader(b)).DecodeValue(reflect.Value{}) != nil: // whatever was asked for
		return errNoObject
	case came != asked:
		return fmt.Errorf("%s came, %s was asked for; %w", came, asked, err)
	}
	return err
}

// SendObj is Send of a value of nearly any type; RecvObj receives it.
//
// Numbers, strings, arrays, slices, maps, structs and pointers to these travel, and what
// lays itself out by MarshalBinary or GobEncode. Of structs exported fields do, and embedded
// structs; fields that are channels or functions, or tagged `mpiv:"-"`, are left out.
// [migrate.Encode] says all of it. Equal values are the same bytes, whatever the rank did before.
//
// A type with interfaces in it goes by encoding/gob and its rules, as do the few others that
// migrate refuses: what is in an interface needs gob.Register, the tag counts for nothing, and
// an embedded struct is left out if its type is not exported. A tag `mpiv:` that says anything
// else is an error. At level crashes use no such types: their bytes may differ in another life of
// the rank, which ends the job as not deterministic.
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

// RecvObj receives a value that SendObj sent. Its type must be V: an int is no int64. Structs
// fit each other if their fields do, by name. A field that did not come is zero; one that came
// and that V lacks is an error, unless the struct here says that it may be lost, by a field
// _ struct{} tagged `mpiv:"drop=name"`.
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
	if errors.Is(err, errNoObject) {
		err = fmt.Errorf("%w; was it sent with SendObj?", err)
	}
	return v, s, c.wrap("RecvObj", s.Source, s.Tag, err)
}

// BcastObj returns the v of root on all ranks. On the others v is not used. What travels, and
// what fits, is as with SendObj and RecvObj.
func BcastObj[V any](ctx context.Context, c *Comm, v V, root int) (V, error) {
	s := c.begin(ctx, opBcastObj, root)
	defer s.done(nil)
	var b []byte
	if s.c.rank == root {
		var err error
		if b, err = encode(v); err != nil {
			return v, errors.Join(s.wrap(-1, err), s.bcastAny(nil, -1, root))
		}
	}
	n := len(b)
	if err := s.bcastAny(&b, n, root); err != nil || s.c.rank == root {
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
// others. What travels, and what fits, is as with SendObj and RecvObj.
func GatherObj[V any](ctx context.Context, c *Comm, v V, root int) ([]V, error) {
	s := c.begin(ctx, opGatherObj, root)
	defer s.done(nil)
	b, mistake := encode(v)
	lengths := make([]int64, s.c.size)
	length := [1]int64{int64(len(b))}
	if mistake != nil {
		length[0] = -1
	}
	if err := s.gather(bytesOf(length[:]), bytesOf(lengths), 8, 1, s.c.size, true, root); err != nil {
		return nil, err
	}
	if mistake != nil {
		b = nil
	}
	if s.c.rank != root {
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
	lengths := make([]int64, s.c.size)
	length := [1]int64{int64(len(b))}
	if mistake != nil {
		b, length[0] = nil, -1
	}
	if err := s.allgather(bytesOf(length[:]), bytesOf(lengths), 8, 1, s.c.size, true); err != nil {
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
// others vs is not used. What travels, and what fits, is as with SendObj and RecvObj.
func ScatterObj[V any](ctx context.Context, c *Comm, vs []V, root int) (V, error) {
	s := c.begin(ctx, opScatterObj, root)
	defer s.done(nil)
	var (
		none    V
		all     []byte
		mistake error
	)
	counts := make([]int, s.c.size)
	lengths := make([]int64, s.c.size)
	if s.c.rank == root {
		if len(vs) != s.c.size {
			mistake = s.wrap(-1, fmt.Errorf("%w: len(vs) is %d, want %d", ErrCount, len(vs), s.c.size))
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
	if err := s.scatter(bytesOf(lengths), bytesOf(length[:]), 8, s.c.size, 1, true, root); err != nil {
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
