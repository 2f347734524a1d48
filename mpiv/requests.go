package mpiv

import (
	"context"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// Waitable is what a program waits for: a [Request], or a [Persistent], which
// after that may be started again.
type Waitable interface{ Request | *Persistent }

// request is what of r is under way.
func request[R Waitable](r *R) *Request {
	switch r := any(r).(type) {
	case *Request:
		return r
	case **Persistent:
		return &(*r).r
	}
	panic("a Waitable is a Request or a *Persistent")
}

// Waitall waits for all of rs. Where statuses is not nil it is as long as rs at
// least, or ErrCount ends the call at once, and gets their Statuses. The error joins
// those of all that failed.
//
// Requests that never began, for their arguments were wrong, end it at once;
// the others may then wait for what never comes, and stay under way.
func Waitall[R Waitable](ctx context.Context, rs []R, statuses []Status) error {
	return waitall(ctx, &callWaitall, rs, statuses)
}

func waitall[R Waitable](ctx context.Context, call *engine.Call, rs []R, statuses []Status) error {
	errs := room(call.Op, rs, statuses)
	for i := range rs {
		r := request(&rs[i])
		if r.odd != nil && r.odd.err != nil {
			_, err := r.early()
			errs = errors.Join(errs, err)
		}
	}
	if errs != nil {
		return errs
	}
	var bin engine.Bin
	for i := range rs {
		r := request(&rs[i])
		s, err := r.waitBin(ctx, call, &bin)
		if statuses != nil {
			statuses[i] = s
		}
		if err != nil {
			errs = errors.Join(errs, err)
		}
	}
	bin.Empty()
	return errs
}

// room tells whether there is some for the Statuses of all of rs.
func room[R Waitable](op string, rs []R, statuses []Status) error {
	if statuses == nil || len(statuses) >= len(rs) {
		return nil
	}
	err := fmt.Errorf("%w: there is room for %d statuses of %d requests: give as much, or nil", ErrCount, len(statuses), len(rs))
	for i := range rs {
		if c := request(&rs[i]).c; c != nil {
			return c.fail(op, -1, -1, err)
		}
	}
	return &RankError{Op: op, Rank: -1, Peer: -1, Tag: -1, Where: callsite.Here(), Err: err} // all are zero: there is no Comm
}

// Testall is Waitall if all of rs are done; otherwise it is false and changes
// none, but for those that never began: the error joins theirs.
func Testall[R Waitable](rs []R, statuses []Status) (bool, error) {
	if err := room(callTestall.Op, rs, statuses); err != nil {
		return false, err
	}
	progress(rs)
	if unbegun(rs) { // the others may wait for what never comes
		return false, waitall(context.Background(), &callTestall, rs, statuses)
	}
	if r := unfinished(rs); r != nil {
		return false, r.raised("Testall")
	}
	return true, waitall(context.Background(), &callTestall, rs, statuses)
}

// unbegun tells whether one of rs never began.
func unbegun[R Waitable](rs []R) bool {
	for i := range rs {
		if r := request(&rs[i]); r.odd != nil && r.odd.err != nil {
			return true
		}
	}
	return false
}

// unfinished is one of rs that is not done; nil if all are. That is one decision: a program that
// asks again and again until the last is done would else record each time that the first is.
func unfinished[R Waitable](rs []R) (open *Request) {
	look := func() bool {
		open = nil
		for i := range rs {
			if r := request(&rs[i]); !r.r.Finished() {
				open = r
				return false
			}
		}
		return true
	}
	for i := range rs {
		if r := request(&rs[i]); r.c != nil && r.c.box.Chooses() {
			if decide(r.c.box, look) {
				return nil
			}
			return r
		}
	}
	look()
	return open
}

// Waitany waits until one of rs is done, and ends it. The index is -1 if all
// are zero. An error is that of the request with this index, or of the wait if that is -1.
func Waitany[R Waitable](ctx context.Context, rs []R) (int, Status, error) {
	return waitany(ctx, &callWaitany, rs)
}

func waitany[R Waitable](ctx context.Context, call *engine.Call, rs []R) (int, Status, error) {
	for i := range rs {
		r := request(&rs[i])
		if c := r.c; c != nil && c.box.Chooses() {
			return waitanyChosen(ctx, call, rs, c)
		}
	}
	return waitanyFree(ctx, call, rs)
}

// waitanyChosen is Waitany where what comes out is recorded.
func waitanyChosen[R Waitable](ctx context.Context, call *engine.Call, rs []R, c *Comm) (int, Status, error) {
	b := c.box
	n, before, known := b.Decide()
	switch {
	case known && before.Seq == engine.OutOfTime: // what is done now was not then
		err := b.Outlast(ctx, call)
		return -1, Status{}, c.fail(call.Op, -1, -1, err)
	case known && before.Seq > 0 && before.Seq <= uint64(len(rs)):
		i := int(before.Seq - 1)
		s, err := request(&rs[i]).waitAs(context.Background(), call) // it was in time
		return i, s, err
	}
	i, s, err := waitanyFree(ctx, call, rs)
	switch {
	case i >= 0:
		b.Decided(n, 0, uint64(i)+1)
	case err != nil && ctx.Err() != nil:
		b.Decided(n, 0, engine.OutOfTime)
	}
	return i, s, err
}

func waitanyFree[R Waitable](ctx context.Context, call *engine.Call, rs []R) (int, Status, error) {
	all := make([]engine.Request, len(rs))
	var c *Comm
	for i := range rs {
		r := request(&rs[i])
		if r.r.Null() && *r != (Request{}) { // it never began
			s, err := r.early()
			return i, s, err
		}
		if all[i] = r.r; c == nil {
			c = r.c
		}
	}
	var span trace.Span
	if c != nil {
		span = c.state.span()
	}
	i, err := engine.WaitAny(ctx, call, all)
	span.End(trace.Record{Op: call.Op})
	if err != nil {
		return -1, Status{}, c.fail(call.Op, -1, -1, err)
	}
	if i < 0 {
		return -1, Status{Source: AnySource, Tag: AnyTag}, nil
	}
	s, err := request(&rs[i]).waitAs(ctx, call)
	return i, s, err
}

// Testany is Waitany without waiting: false if none is done. With all zero it
// is true, with the index -1.
func Testany[R Waitable](rs []R) (int, Status, bool, error) {
	progress(rs)
	zero, at, raised := true, -1, error(nil)
	for i := range rs {
		r := request(&rs[i])
		if *r == (Request{}) {
			continue
		}
		zero = false
		if r.done() {
			s, err := r.waitAs(context.Background(), &engine.Call{Op: "Testany"})
			return i, s, true, err
		}
		if raised == nil { // another may be done
			at, raised = i, r.raised("Testany")
		}
	}
	if raised != nil {
		return at, Status{}, false, raised
	}
	return -1, Status{Source: AnySource, Tag: AnyTag}, zero, nil
}

// Waitsome waits until at least one of rs is done, and ends all that are. The
// indexes are those of the ended, none if all were zero; statuses, where not
// nil, is as long as rs at least and gets their Statuses from its start.
func Waitsome[R Waitable](ctx context.Context, rs []R, statuses []Status) ([]int, error) {
	if err := room(callWaitsome.Op, rs, statuses); err != nil {
		return nil, err
	}
	i, s, err := waitany(ctx, &callWaitsome, rs)
	if i < 0 {
		return nil, err
	}
	var done []int
	if *request(&rs[i]) == (Request{}) { // otherwise it goes on: ErrProcFailedPending
		done = []int{i}
		if statuses != nil {
			statuses[0] = s
		}
	}
	more, moreErr := testsome(&callWaitsome, rs, tail(statuses, len(done)))
	return append(done, more...), errors.Join(err, moreErr)
}

func tail(s []Status, n int) []Status {
	if s == nil {
		return nil
	}
	return s[n:]
}

// Testsome is Waitsome without waiting: it ends those of rs that are done, which may be none.
func Testsome[R Waitable](rs []R, statuses []Status) ([]int, error) {
	if err := room(callTestsome.Op, rs, statuses); err != nil {
		return nil, err
	}
	return testsome(&callTestsome, rs, statuses)
}

func testsome[R Waitable](call *engine.Call, rs []R, statuses []Status) ([]int, error) {
	progress(rs)
	var done []int
	var errs error
	for i := range rs {
		r := request(&rs[i])
		if *r == (Request{}) || !r.done() {
			errs = errors.Join(errs, r.raised(call.Op))
			continue
		}
		s, err := r.waitAs(context.Background(), call)
		if statuses != nil {
			statuses[len(done)] = s
		}
		done = append(done, i)
		errs = errors.Join(errs, err)
	}
	return done, errs
}

// progress moves messages once for the ranks of rs.
func progress[R Waitable](rs []R) {
	for i := range rs {
		r := request(&rs[i])
		if r.c != nil {
			r.c.box.Progress()
			return
		}
	}
}
