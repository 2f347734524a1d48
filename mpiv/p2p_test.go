package mpiv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestRsend(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		for _, n := range []int{0, 1, 50_000} {
			if c.Rank() == 1 {
				into := make([]int, n)
				r := Irecv(c, into, 0, 2)
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				if s, err := r.Wait(ctx); err != nil || s.Count != n || n > 0 && into[n-1] != n {
					return fmt.Errorf("Wait of %d elements that Rsend sent: %+v, %w", n, s, err)
				}
				continue
			}
			data := make([]int, n)
			if n > 0 {
				data[n-1] = n
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if err := Rsend(ctx, c, data, 1, 2); err != nil {
				return err
			}
		}
		if err := Rsend(ctx, c, []int{1}, 2, 0); !isError(err, ErrRank) {
			return fmt.Errorf("Rsend to rank 2 of 2 = %v, want ErrRank", err)
		}
		return Rsend(ctx, c, []int{1}, ProcNull, 0)
	})
}

// A message that Mprobe took is received by Imrecv alone, and once; what came after it
// goes to other receives.
func TestImrecv(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		for _, n := range []int{1, 50_000} {
			if c.Rank() == 0 {
				first, second := make([]int, n), make([]int, n)
				first[n-1], second[n-1] = 1, 2
				rs := []Request{Isend(c, first, 1, 3), Isend(c, second, 1, 3)}
				if err := Waitall(ctx, rs, nil); err != nil {
					return err
				}
				continue
			}
			m, s, err := Mprobe(ctx, c, AnySource, 3)
			if err != nil || s.Bytes != 8*n {
				return fmt.Errorf("Mprobe = %+v, %w, want %d bytes", s, err, 8*n)
			}
			later, taken := make([]int, n), make([]int, n)
			if _, err := Recv(ctx, c, later, 0, 3); err != nil {
				return err
			}
			r := Imrecv(m, taken)
			if s, err := r.Wait(ctx); err != nil || s != (Status{Source: 0, Tag: 3, Count: n, Bytes: 8 * n}) {
				return fmt.Errorf("Wait of Imrecv = %+v, %w", s, err)
			}
			if taken[n-1] != 1 || later[n-1] != 2 {
				return fmt.Errorf("Imrecv got message %d, and Recv %d, want 1 and 2", taken[n-1], later[n-1])
			}
			again := Imrecv(m, taken)
			if _, err := again.Wait(ctx); !isError(err, ErrRequest) {
				return fmt.Errorf("a second Imrecv = %v, want ErrRequest", err)
			}
		}
		return nil
	})
}

func TestImrecvThatDoesNotFit(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			return Send(ctx, c, []int{1, 2, 3}, 1, 0)
		}
		m, _, err := Mprobe(ctx, c, 0, 0)
		if err != nil {
			return err
		}
		into := []int{0, 0, 9}
		r := Imrecv(m, into[:2])
		if s, err := r.Wait(ctx); !isError(err, ErrTruncate) || s.Bytes != 24 || into[2] != 9 || into[1] != 2 {
			return fmt.Errorf("Wait = %+v, %v with %v, want ErrTruncate and the first two elements", s, err, into)
		}
		return nil
	})
}

func TestImrecvFromNobody(t *testing.T) {
	runWorld(t, 1, func(ctx context.Context, c *Comm) error {
		m, _, err := Mprobe(ctx, c, ProcNull, 0)
		if err != nil {
			return err
		}
		r := Imrecv(m, []int{5})
		if s, err := r.Wait(ctx); err != nil || s != nullStatus {
			return fmt.Errorf("Wait = %+v, %w, want %+v", s, err, nullStatus)
		}
		return nil
	})
}

// Improbe gives a nil Message when there is none, and both give one with an error.
func TestReceiveOfNoMessage(t *testing.T) {
	runWorld(t, 1, func(ctx context.Context, c *Comm) error {
		m, _, err := Improbe(c, 0, 0)
		if err != nil || m != nil {
			return fmt.Errorf("Improbe = %v, %w, want nothing", m, err)
		}
		_, err = Mrecv(ctx, m, []int{5})
		re, ok := errors.AsType[*RankError](err)
		if !ok || !errors.Is(err, ErrRequest) || re.Op != "Mrecv" || !strings.Contains(err.Error(), "look at the error of the probe") || strings.Contains(err.Error(), "rank") {
			return fmt.Errorf("Mrecv of nil = %v, want ErrRequest, what to do, and no rank", err)
		}
		if _, err := Mrecv(ctx, &Message{}, []func(){nil}); !errors.Is(err, ErrRequest) {
			return fmt.Errorf("Mrecv of a Message that no probe made = %v, want ErrRequest", err)
		}
		rs := []Request{Imrecv(m, []int{5}), {}}
		if err := Waitall(ctx, rs, nil); !errors.Is(err, ErrRequest) {
			return fmt.Errorf("Waitall of Imrecv of nil = %v, want ErrRequest", err)
		}
		rs = []Request{Imrecv(m, []int{5})}
		if _, _, err := Waitany(ctx, rs); !errors.Is(err, ErrRequest) {
			return fmt.Errorf("Waitany of Imrecv of nil = %v, want ErrRequest", err)
		}
		r := Imrecv(m, []int{5})
		if _, ok, err := r.Test(); !ok || !errors.Is(err, ErrRequest) {
			return fmt.Errorf("Test of Imrecv of nil = %v, %v, want ErrRequest", ok, err)
		}
		return nil
	})
}

// A Sendrecv of which one half is wrong sends nothing, and leaves what has come to be received.
func TestSendrecvWithAWrongHalf(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		other := 1 - c.Rank()
		long, into := make([]int, 50_000), make([]int, 50_000)
		if err := Send(ctx, c, []int{1}, other, 1); err != nil {
			return err
		}
		if _, err := Probe(ctx, c, other, 1); err != nil {
			return err
		}
		sendrecv := func(to, sendTag, from, recvTag int) error {
			_, err := Sendrecv(ctx, c, long, to, sendTag, into, from, recvTag)
			return err
		}
		for _, w := range []struct {
			name string
			err  error
			want error
		}{
			{"a source that there is not", sendrecv(other, 2, 2, 1), ErrRank},
			{"a wrong tag to receive", sendrecv(other, 2, other, -2), ErrTag},
			{"a destination that there is not", sendrecv(2, 2, other, 1), ErrRank},
			{"a wrong tag to send", sendrecv(other, -1, other, 1), ErrTag},
			{"all wrong", sendrecv(AnySource, 2, other, -2), ErrTag},
			{"a type to receive that does not fit", second(Sendrecv(ctx, c, long, other, 2, make([]string, 1), other, 1)), ErrType},
			{"a type to send that does not fit", second(Sendrecv(ctx, c, make([]string, 1), other, 2, into, other, 1)), ErrType},
			{"to replace, from a source that there is not", second(SendrecvReplace(ctx, c, long, other, 2, 2, 1)), ErrRank},
		} {
			if !isError(w.err, w.want) {
				return fmt.Errorf("%s: %v, want %w", w.name, w.err, w.want)
			}
		}
		if _, err := Recv(ctx, c, into, other, 1); err != nil {
			return err
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		if s, found, err := Iprobe(c, other, 2); found || err != nil {
			return fmt.Errorf("it has sent %+v, %w", s, err)
		}
		return nil
	})
}

func second(_ Status, err error) error { return err }

// What cannot be received as asked for is said alike by all that receive.
func TestReceivesOfTheWrongType(t *testing.T) {
	twoPlaces(t, func(ctx context.Context, c *Comm) error {
		if c.Rank() == 0 {
			for range 4 {
				if err := Send(ctx, c, make([]byte, 7), 1, 0); err != nil {
					return err
				}
			}
			return nil
		}
		short, stop := context.WithTimeout(ctx, time.Millisecond)
		defer stop()
		if _, _, err := RecvAlloc[string](short, c, 0, 5); !isError(err, ErrType) {
			return fmt.Errorf("RecvAlloc of strings that nobody sends = %v, want ErrType", err)
		}
		if _, _, err := RecvAlloc[string](ctx, c, 0, 0); !isError(err, ErrType) {
			return fmt.Errorf("RecvAlloc of strings = %v, want ErrType", err)
		}
		want := Status{Source: 0, Tag: 0, Count: 1, Bytes: 7}
		recv := func() (Status, error) { return Recv(ctx, c, make([]int32, 5), 0, 0) }
		wait := func() (Status, error) {
			r := Irecv(c, make([]int32, 5), 0, 0)
			return r.Wait(ctx)
		}
		mrecv := func() (Status, error) {
			m, _, err := Mprobe(ctx, c, 0, 0)
			if err != nil {
				return Status{}, err
			}
			return Mrecv(ctx, m, make([]int32, 5))
		}
		alloc := func() (Status, error) {
			_, s, err := RecvAlloc[int32](ctx, c, 0, 0)
			return s, err
		}
		for i, receive := range []func() (Status, error){recv, wait, mrecv, alloc} {
			if s, err := receive(); s != want || !isError(err, ErrCount) {
				return fmt.Errorf("receive %d of 7 bytes as int32: %+v, %v, want %+v and ErrCount", i, s, err, want)
			} else if re, ok := errors.AsType[*RankError](err); !ok || re.Peer != 0 || re.Tag != 0 {
				return fmt.Errorf("receive %d of 7 bytes as int32: %v, want a RankError with peer 0 and tag 0", i, err)
			}
		}
		return nil
	})
}

// What a probe took and nobody received is found with Check, too.
func TestWhatAProbeTookIsLeftOver(t *testing.T) {
	err := Run(t.Context(), 1, Options{Check: true}, func(ctx context.Context, world *Comm) error {
		if err := Send(ctx, world, []int{1}, 0, 7); err != nil {
			return err
		}
		_, _, err := Mprobe(ctx, world, 0, 7)
		return err
	})
	if !errors.Is(err, ErrUnreceived) || !strings.Contains(err.Error(), "Mrecv") {
		t.Fatal(err)
	}
}

// Who has what is left over, and whose it is, are told as ranks of its Comm.
func TestWhatIsLeftOverNamesRanksOfItsComm(t *testing.T) {
	for _, probed := range []bool{false, true} {
		err := Run(t.Context(), 3, Options{Check: true}, func(ctx context.Context, world *Comm) error {
			c, err := Split(ctx, world, min(world.Rank(), 1), -world.Rank()) // ranks 2 and 1 of the world are 0 and 1
			if err == nil && world.Rank() == 2 {
				err = Send(ctx, c, []int{1}, 1, 7)
			}
			if err == nil && world.Rank() == 1 && probed {
				_, _, err = Mprobe(ctx, c, 0, 7)
			}
			return errors.Join(err, Barrier(ctx, world))
		})
		if re, ok := errors.AsType[*RankError](err); !ok || !errors.Is(err, ErrUnreceived) || re.Rank != 1 || re.Peer != 0 {
			t.Errorf("probed %v: %v, want rank 1 and peer 0 of the part", probed, err)
		}
	}
}

func TestSendrecvReplaceIsNamedInItsErrors(t *testing.T) {
	err := Run(t.Context(), 1, Options{}, func(ctx context.Context, world *Comm) error {
		_, err := SendrecvReplace(ctx, world, []int{1}, 7, 0, 0, 0)
		return err
	})
	if re, ok := errors.AsType[*RankError](err); !ok || re.Op != "SendrecvReplace" {
		t.Errorf("the error does not say that SendrecvReplace failed: %v", err)
	}
}
