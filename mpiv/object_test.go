package mpiv

import (
	"context"
	"encoding/gob"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type note struct {
	Text string
	Of   map[string]int
}

func TestObjects(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		rank, size := c.Rank(), c.Size()
		mine := note{fmt.Sprint("from ", rank), map[string]int{"rank": rank}}
		right, left := (rank+1)%size, (rank+size-1)%size
		r := IsendObj(c, mine, right, 3)
		got, st, err := RecvObj[note](ctx, c, left, 3)
		if err != nil || got.Of["rank"] != left || st.Source != left {
			return fmt.Errorf("RecvObj = %v, %v, %w", got, st, err)
		}
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
		got, err = BcastObj(ctx, c, mine, 2)
		if err != nil || got.Text != "from 2" {
			return fmt.Errorf("BcastObj = %v, %w", got, err)
		}
		all, err := GatherObj(ctx, c, mine.Text, 1)
		if err != nil {
			return err
		}
		want := []string{"from 0", "from 1", "from 2"}
		if rank != 1 {
			want = nil
		}
		if !slices.Equal(all, want) {
			return fmt.Errorf("GatherObj = %v, want %v", all, want)
		}
		numbers, err := AllgatherObj(ctx, c, []int{rank})
		if err != nil || fmt.Sprint(numbers) != "[[0] [1] [2]]" {
			return fmt.Errorf("AllgatherObj = %v, %w", numbers, err)
		}
		var words []string
		if rank == 0 {
			words = []string{"a", "", "c"}
		}
		word, err := ScatterObj(ctx, c, words, 0)
		if err != nil || word != []string{"a", "", "c"}[rank] {
			return fmt.Errorf("ScatterObj = %q, %w", word, err)
		}
		return nil
	})
}

// loose goes by encoding/gob.
type loose struct{ V any }

type secret struct{ N int } // not registered

type misspelt struct {
	N int `mpiv:"_"`
}

// What migrate refuses goes by gob, nil too, and comes whole.
func TestObjectsByGob(t *testing.T) {
	n := 7
	type chain struct {
		V    any
		Next *chain
	}
	for _, travels := range []func() error{
		comes[any](nil), comes[any](7), comes[any]("text"), comes[any](map[string]int{"a": 1}), comes[any](note{Text: "text"}),
		comes(loose{}), comes(loose{3.5}), comes(loose{note{Text: "text"}}), comes(&loose{4}), comes[*loose](nil),
		comes[[]any](nil), comes([]any{1, nil, "two"}), comes[map[string]any](nil), comes(map[string]any{"a": 1, "b": []int{2}}),
		comes(chain{1, &chain{"two", nil}}), comes(uintptr(5)), comes(struct{ P uintptr }{6}), comes(map[*int]string(nil)),
		comes[**loose](nil), comes([2]any{1, "b"}), comes[fmt.Stringer](nil),
	} {
		require.NoError(t, travels())
	}
	b, err := encode(map[*int]string{&n: "seven"}) // gob follows the keys
	require.NoError(t, err)
	m, err := decode[map[*int]string](b)
	require.NoError(t, err)
	require.Len(t, m, 1)
	for k, v := range m {
		require.Equal(t, 7, *k)
		require.Equal(t, "seven", v)
	}
}

func init() {
	gob.Register(note{})
	gob.Register(map[string]int{})
	gob.Register([]int{})
}

func comes[V any](v V) func() error {
	return func() error {
		b, err := encode(v)
		if err != nil {
			return err
		}
		if b[0] != byGob {
			return fmt.Errorf("%T went without gob", v)
		}
		got, err := decode[V](b)
		if err != nil || !reflect.DeepEqual(got, v) {
			return fmt.Errorf("%#v came as %#v, %w", v, got, err)
		}
		return nil
	}
}

// A value that cannot be encoded is an error everywhere, and nobody waits.
func TestObjectsThatCannotBeEncoded(t *testing.T) {
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		bad := any(nil)
		if c.Rank() == 1 {
			bad = make(chan int)
		} else {
			bad = "text"
		}
		if _, err := BcastObj(ctx, c, bad, 1); !isError(err, ErrObject) {
			return fmt.Errorf("BcastObj = %v, want ErrObject", err)
		}
		if _, err := AllgatherObj(ctx, c, bad); !isError(err, ErrObject) {
			return fmt.Errorf("AllgatherObj = %v, want ErrObject", err)
		}
		if _, err := GatherObj(ctx, c, bad, 0); isError(err, ErrObject) != (c.Rank() < 2) {
			return fmt.Errorf("GatherObj = %v", err)
		}
		if _, err := ScatterObj(ctx, c, []any{"a", bad, "b"}, 1); !isError(err, ErrObject) {
			return fmt.Errorf("ScatterObj = %v, want ErrObject", err)
		}
		if _, err := ScatterObj(ctx, c, []string{"a"}, 1); isError(err, ErrCount) != (c.Rank() == 1) || err == nil {
			return fmt.Errorf("ScatterObj of one = %v", err)
		}
		return Barrier(ctx, c)
	})
}

// Errors speak of the program's types, and of a message that is no object.
func TestWhatIsWrongWithAnObject(t *testing.T) {
	type call func(ctx context.Context, c *Comm) error
	send := func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, "text", 1, 3) }
	sendAny := func(v any) call {
		return func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, loose{v}, 1, 3) }
	}
	plain := func(n int, first ...float64) call {
		return func(ctx context.Context, c *Comm) error {
			return Send(ctx, c, append(first, make([]float64, n)...), 1, 3)
		}
	}
	recv := func(ctx context.Context, c *Comm) error {
		_, _, err := RecvObj[int](ctx, c, 0, 3)
		return err
	}
	recvAny := func(ctx context.Context, c *Comm) error {
		_, _, err := RecvObj[loose](ctx, c, 0, 3)
		return err
	}
	none := func(context.Context, *Comm) error { return nil }
	for _, x := range []struct {
		name        string
		send, recv  call
		says, never string
	}{
		{"a channel", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, make(chan int), 1, 3) }, none, "SendObj on world, rank 0, peer 1, tag 3 (object_test.go:", "envelope"},
		{"a channel, by its type", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, make(chan int), 1, 3) }, none, "type cannot travel: chan int; ", "state"},
		{"an interface, of what gob does not know", sendAny(secret{1}), none, "type cannot travel: loose.V: interface {}; gob: type not registered for interface: mpiv.secret", "state"},
		{"a tag that there is not", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, misspelt{}, 1, 3) }, none, "field misspelt.N has `mpiv:\"_\"`; there is `mpiv:\"-\"`", "state"},
		{"a tag that there is not, at the receiver", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, struct{ N int }{1}, 1, 3) }, func(ctx context.Context, c *Comm) error {
			_, _, err := RecvObj[misspelt](ctx, c, 0, 3)
			return err
		}, "field misspelt.N has `mpiv:\"_\"`; there is `mpiv:\"-\"`", "came"},
		{"another type", send, recv, "value cannot be encoded or decoded: string came, int was asked for", "variable"},
		{"another type, of an object", send, recv, "RecvObj on world, rank 1, peer 0, tag 3 (object_test.go:", "was it sent with SendObj?"},
		{"another type, by gob", sendAny("text"), recv, "mpiv.loose came, int was asked for; gob: ", "was it sent with SendObj?"},
		{"another type than one by gob", send, recvAny, "string came, mpiv.loose was asked for", "was it sent with SendObj?"},
		{"nil, by gob", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, (*loose)(nil), 1, 3) }, recv, "*mpiv.loose came, which is nil, and int was asked for", "was it sent with SendObj?"},
		{"a field", func(ctx context.Context, c *Comm) error { return SendObj(ctx, c, note{}, 1, 3) }, func(ctx context.Context, c *Comm) error {
			_, _, err := RecvObj[struct{ Text string }](ctx, c, 0, 3)
			return err
		}, "note came, struct { Text string } was asked for; .Of, a map[string]int, has no field here that travels; if it may be lost, add a field", "was it sent with SendObj?"},
		{"an empty message", plain(0), recv, "what came is no object; was it sent with SendObj?", "manifest"},
		{"a message of zeros", plain(4), recv, "what came is no object; was it sent with SendObj?", "manifest"},
		{"a message of numbers", plain(4, 3.14, 2.72), recv, "what came is no object; was it sent with SendObj?", "manifest"},
		{"a message of numbers, for gob", plain(4, 3.14, 2.72), recvAny, "what came is no object; was it sent with SendObj?", "manifest"},
		{"no such rank", func(ctx context.Context, c *Comm) error {
			r := IsendObj(c, "text", 2, 3)
			_, err := r.Wait(ctx)
			return err
		}, none, "IsendObj on world, rank 0, peer 2, tag 3 (object_test.go:", "Isend on"},
	} {
		t.Run(x.name, func(t *testing.T) {
			err := Run(t.Context(), 2, Options{}, func(ctx context.Context, c *Comm) error {
				if c.Rank() == 0 {
					return x.send(ctx, c)
				}
				return x.recv(ctx, c)
			})
			require.ErrorContains(t, err, x.says)
			require.NotContains(t, err.Error(), x.never)
		})
	}
}
