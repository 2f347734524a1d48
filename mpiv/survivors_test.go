package mpiv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
)

// A muster is a program of level "report" that a seed makes up: phases of all kinds of
// calls on all kinds of communicators, after each of which its ranks agree on whether the
// phase counts, and go on with fewer where some were killed. It checks all results, all
// errors, and that the survivors are of one mind.
type muster struct {
	seed   uint64
	phases int
	w      *mortals

	mu     sync.Mutex // guards what follows
	agreed map[string]agreedOn
	groups map[string]string // of Comms, by their path
	ends   map[string]int
	shrunk int // Comms, on all ranks together
}

// agreedOn is what the ranks have put into an agreement, and what came out.
type agreedOn struct {
	and      uint64 // of the flags of those that came
	returned bool
	flag     uint64
	lost     bool
}

// TestMuster runs musters whose processes are killed at any moment.
func TestMuster(t *testing.T) {
	layouts := [][]int{{1, 1, 1}, {1, 1, 1, 1, 1}, {2, 1, 3}, {4, 4}, {1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1}}
	const usual = 60
	shrunk, deaths := 0, 0
	n := seeds.Each(t, usual, func(seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 7))
		layout := layouts[rng.IntN(len(layouts))]
		m := &muster{seed: seed, phases: 3 + rng.IntN(12), agreed: map[string]agreedOn{}, groups: map[string]string{}, ends: map[string]int{}}
		kills := rng.IntN(len(layout))
		var once sync.Once
		runMortals(t, layout, func(ctx context.Context, world *Comm, w *mortals) error {
			once.Do(func() {
				m.w = w
				w.told.Go(func() { m.killSome(w, rng, world.Size(), kills) })
			})
			err := m.run(ctx, world)
			if err != nil && !m.dead(world.Rank()) {
				return fmt.Errorf("%w\n%s", err, seeds.Replay("./mpiv", "TestMuster", seed))
			}
			return err
		})
		if t.Failed() {
			t.FailNow()
		}
		require.LessOrEqual(t, len(m.ends), 1, "survivors are in different communicators: %v; %s", m.ends, seeds.Replay("./mpiv", "TestMuster", seed))
		shrunk += m.shrunk
		deaths += len(m.w.dead)
	})
	if n >= usual {
		require.Greater(t, deaths, usual/2)
		require.Greater(t, shrunk, usual/2)
	}
}

// killSome kills processes of ranks, sometimes two at once; one at least stays.
func (m *muster) killSome(w *mortals, rng *rand.Rand, ranks, kills int) {
	for kills > 0 {
		time.Sleep(time.Duration(rng.IntN(6000)) * time.Microsecond)
		victims := []int{rng.IntN(ranks)}
		if kills > 1 && rng.IntN(4) == 0 {
			victims = append(victims, rng.IntN(ranks))
		}
		w.kill(victims...)
		kills -= len(victims)
	}
}

func (m *muster) dead(rank int) bool {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.w.dead[m.w.of[rank]]
}

// errPhase is that a phase does not count: all that live have been told.
var errPhase = errors.New("the phase does not count")

func (m *muster) run(ctx context.Context, world *Comm) error {
	c, path := world, "world"
	for phase := 0; phase < m.phases; {
		p := &phaseRun{muster: m, c: c, path: fmt.Sprintf("%s/%d", path, phase), rng: rand.New(rand.NewPCG(m.seed, uint64(phase)<<32|uint64(len(path))))}
		p.own = rand.New(rand.NewPCG(m.seed, uint64(phase)<<32|uint64(world.Rank())))
		err := p.all(ctx)
		if err == nil {
			for _, d := range p.comms {
				if err := d.c.Free(); err != nil {
					return err
				}
			}
			phase++
			continue
		}
		if !errors.Is(err, errPhase) {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		known := c.Failed()
		d, err := c.Shrink(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		path = p.path + "-"
		for i := range known.Size() {
			if r := known.at(i); d.group.index(r) >= 0 {
				return fmt.Errorf("%s: rank %d of the world was known to have failed, and is in what was shrunk", p.path, r)
			}
		}
		if err := m.same(path, membersOf(d)); err != nil {
			return err
		}
		m.mu.Lock()
		m.shrunk++
		m.mu.Unlock()
		if c != world {
			if err := c.Free(); err != nil {
				return err
			}
		}
		c = d
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead(world.Rank()) {
		m.ends[membersOf(c)]++
	}
	return nil
}

// membersOf is c's context, and its ranks in the world.
func membersOf(c *Comm) string {
	ranks := make([]int, c.Size())
	for r := range ranks {
		ranks[r] = int(c.world(r))
	}
	return fmt.Sprint(c.context, ranks)
}

// same checks that the group is the same on all ranks that come here.
func (m *muster) same(path, group string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was, is := m.groups[path]; is && was != group {
		return fmt.Errorf("%s has %s here, and %s elsewhere", path, group, was)
	}
	m.groups[path] = group
	return nil
}

// A phaseRun is a phase on one rank.
type phaseRun struct {
	*muster
	c     *Comm // all that live are in it
	path  string
	rng   *rand.Rand // the same on all
	own   *rand.Rand
	comms []subComm
	step  int
	asked int // agreements
}

// A subComm was made in the phase.
type subComm struct {
	c    *Comm
	path string
}

// all does the phase. What it returns but nil and errPhase is wrong.
func (p *phaseRun) all(ctx context.Context) error {
	for p.step = range 1 + p.rng.IntN(6) {
		d := subComm{p.c, p.path}
		if k := p.rng.IntN(len(p.comms) + 2); k < len(p.comms) {
			d = p.comms[k]
		}
		call := musterCalls[p.rng.IntN(len(musterCalls))]
		err := call.do(p, ctx, d)
		if errors.Is(err, errPhase) {
			return err
		}
		if err == nil {
			continue
		}
		if err := p.excused(d.c, err); err != nil {
			return fmt.Errorf("%s in step %d: %w", call.name, p.step, err)
		}
		for _, d := range append(p.comms, subComm{p.c, p.path}) {
			if err := d.c.Revoke(ctx); err != nil {
				return err
			}
			if !d.c.Revoked() {
				return errors.New("who has revoked a communicator does not know")
			}
		}
		if ok, err := p.agree(ctx, false); err != nil {
			return err
		} else if ok {
			return errors.New("a phase counts that has failed on this rank")
		}
		return errPhase
	}
	if flag, err := p.agree(ctx, true); err != nil {
		return err
	} else if !flag {
		return errPhase
	}
	return nil
}

// excused is err if it is none that a failure excuses.
func (p *phaseRun) excused(c *Comm, err error) error {
	switch {
	case errors.Is(err, ErrRevoked):
		if !c.Revoked() {
			return fmt.Errorf("nobody has revoked it: %w", err)
		}
		return nil
	case errors.Is(err, ErrProcFailed), errors.Is(err, ErrProcFailedPending):
		for r := range c.Size() {
			if p.dead(int(c.world(r))) {
				return nil
			}
		}
		return fmt.Errorf("all its ranks live: %w", err)
	}
	return err
}

// agree agrees on whether ok, and some flags beside. Nobody's failure is excused: what is
// returned is false then.
func (p *phaseRun) agree(ctx context.Context, ok bool) (bool, error) {
	p.asked++
	path := fmt.Sprintf("%s#%d", p.path, p.asked)
	if p.own.IntN(3) == 0 {
		p.c.AckFailed()
	}
	mine := p.own.Uint64() | p.own.Uint64() | p.own.Uint64()
	mine &^= 1
	if ok {
		mine |= 1
	}
	p.mu.Lock()
	a, known := p.agreed[path]
	if !known {
		a.and = ^uint64(0)
	}
	a.and &= mine
	p.agreed[path] = a
	p.mu.Unlock()
	flag, err := p.c.Agree(ctx, mine)
	lost := errors.Is(err, ErrProcFailed)
	if err != nil && !lost {
		return false, fmt.Errorf("Agree: %w", err)
	}
	if p.dead(int(p.c.box.Rank())) {
		return false, errKilled
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a = p.agreed[path]
	switch {
	case a.returned && (a.flag != flag || a.lost != lost):
		return false, fmt.Errorf("%s: agreed on %x (lost: %v) here, and on %x (lost: %v) elsewhere", path, flag, lost, a.flag, a.lost)
	case flag&^mine != 0:
		return false, fmt.Errorf("%s: agreed on %x, though this rank said %x", path, flag, mine)
	case a.and&^flag != 0:
		return false, fmt.Errorf("%s: agreed on %x, though all said %x", path, flag, a.and)
	case lost:
		if err := p.excused(p.c, err); err != nil {
			return false, err
		}
	}
	a.returned, a.flag, a.lost = true, flag, lost
	p.agreed[path] = a
	return flag&1 == 1 && !lost, nil
}

// value is what rank of the world has for the step.
func (p *phaseRun) value(d subComm, rank int) int {
	return int(d.c.world(rank))*1_000_003 + p.step*7919 + len(d.path)
}

func (p *phaseRun) tag() int { return p.step + 1 }

func wrong(what string, got, want any) error {
	return fmt.Errorf("%s: got %v, want %v", what, got, want)
}

type musterCall struct {
	name string
	do   func(p *phaseRun, ctx context.Context, d subComm) error
}

var musterCalls = []musterCall{
	{"Barrier", func(p *phaseRun, ctx context.Context, d subComm) error { return Barrier(ctx, d.c) }},
	{"Allreduce", (*phaseRun).allreduce},
	{"Bcast", (*phaseRun).bcast},
	{"Gather", (*phaseRun).gather},
	{"Alltoall", (*phaseRun).alltoall},
	{"Iallreduce and Ibcast", (*phaseRun).beside},
	{"ring", (*phaseRun).ring},
	{"any source", (*phaseRun).anySource},
	{"neighbours", (*phaseRun).neighbours},
	{"Mprobe", (*phaseRun).mprobe},
	{"persistent", (*phaseRun).persistent},
	{"Dup or Split", (*phaseRun).derive},
	{"Dup or Split", (*phaseRun).derive},
	{"Agree", func(p *phaseRun, ctx context.Context, _ subComm) error {
		if flag, err := p.agree(ctx, true); err != nil {
			return err
		} else if !flag {
			return errPhase
		}
		return nil
	}},
}

// size is a number of elements: short messages, and such as wait for their receives.
func (p *phaseRun) size() int { return []int{1, 1, 300, 40_000}[p.rng.IntN(4)] }

func (p *phaseRun) allreduce(ctx context.Context, d subComm) error {
	v, want := make([]int, p.size()), 0
	for i := range v {
		v[i] = p.value(d, d.c.Rank()) + i
	}
	for r := range d.c.Size() {
		want += p.value(d, r)
	}
	if err := Allreduce(ctx, d.c, v, v, Sum); err != nil {
		return err
	}
	for i := range v {
		if v[i] != want+i*d.c.Size() {
			return wrong("Allreduce", v[i], want+i*d.c.Size())
		}
	}
	return nil
}

func (p *phaseRun) bcast(ctx context.Context, d subComm) error {
	v, root := make([]int, p.size()), p.rng.IntN(1<<16)%d.c.Size()
	if d.c.Rank() == root {
		for i := range v {
			v[i] = p.value(d, root)
		}
	}
	if err := Bcast(ctx, d.c, v, root); err != nil {
		return err
	}
	for i := range v {
		if v[i] != p.value(d, root) {
			return wrong("Bcast", v[i], p.value(d, root))
		}
	}
	return nil
}

func (p *phaseRun) gather(ctx context.Context, d subComm) error {
	root := p.rng.IntN(1<<16) % d.c.Size()
	out := make([]int, d.c.Size())
	if err := Gather(ctx, d.c, []int{p.value(d, d.c.Rank())}, out, root); err != nil || d.c.Rank() != root {
		return err
	}
	for r := range out {
		if out[r] != p.value(d, r) {
			return wrong("Gather", out[r], p.value(d, r))
		}
	}
	return nil
}

func (p *phaseRun) alltoall(ctx context.Context, d subComm) error {
	k := p.size()/d.c.Size() + 1
	in, out := make([]int, k*d.c.Size()), make([]int, k*d.c.Size())
	for i := range in {
		in[i] = p.value(d, d.c.Rank()) + i/k
	}
	if err := Alltoall(ctx, d.c, in, out); err != nil {
		return err
	}
	for i := range out {
		if want := p.value(d, i/k) + d.c.Rank(); out[i] != want {
			return wrong("Alltoall", out[i], want)
		}
	}
	return nil
}

// beside has two collectives under way at once, and a message between them.
func (p *phaseRun) beside(ctx context.Context, d subComm) error {
	v, out := []int{p.value(d, d.c.Rank())}, []int{0}
	b, root := make([]int, p.size()), p.rng.IntN(1<<16)%d.c.Size()
	if d.c.Rank() == root {
		b[0] = p.value(d, root)
	}
	n, me := d.c.Size(), d.c.Rank()
	from := []int{0}
	rs := []Request{
		Iallreduce(ctx, d.c, v, out, Sum),
		Irecv(d.c, from, (me+n-1)%n, p.tag()),
		Ibcast(ctx, d.c, b, root),
		Isend(d.c, v, (me+1)%n, p.tag()),
	}
	if err := Waitall(ctx, rs, nil); err != nil {
		return err
	}
	want := 0
	for r := range n {
		want += p.value(d, r)
	}
	switch {
	case out[0] != want:
		return wrong("Iallreduce", out[0], want)
	case b[0] != p.value(d, root):
		return wrong("Ibcast", b[0], p.value(d, root))
	case from[0] != p.value(d, (me+n-1)%n):
		return wrong("Irecv", from[0], p.value(d, (me+n-1)%n))
	}
	return nil
}

func (p *phaseRun) ring(ctx context.Context, d subComm) error {
	n, me, k := d.c.Size(), d.c.Rank(), p.size()
	out, in := make([]int, k), make([]int, k)
	out[k-1] = p.value(d, me)
	before := (me + n - 1) % n
	if _, err := Sendrecv(ctx, d.c, out, (me+1)%n, p.tag(), in, before, p.tag()); err != nil {
		return err
	}
	if in[k-1] != p.value(d, before) {
		return wrong("Sendrecv", in[k-1], p.value(d, before))
	}
	return nil
}

// anySource has a rank hear from all that live: those that fail meanwhile are
// acknowledged, and done without.
func (p *phaseRun) anySource(ctx context.Context, d subComm) error {
	root, long := p.rng.IntN(1<<16)%d.c.Size(), p.rng.IntN(3) == 0
	if d.c.Rank() != root {
		v := []int{p.value(d, d.c.Rank())}
		if long {
			return Ssend(ctx, d.c, v, root, p.tag())
		}
		return Send(ctx, d.c, v, root, p.tag())
	}
	due := map[int]bool{}
	for r := range d.c.Size() {
		if r != root {
			due[r] = true
		}
	}
	without := func(acked Group) {
		for i := range acked.Size() {
			delete(due, d.c.group.index(acked.at(i)))
		}
	}
	without(d.c.AckFailed()) // of one that was acknowledged before nothing is heard any more
	for len(due) > 0 {
		v := []int{0}
		s, err := Recv(ctx, d.c, v, AnySource, p.tag())
		switch {
		case errors.Is(err, ErrProcFailedPending):
			if err := p.excused(d.c, err); err != nil {
				return err
			}
			acked := d.c.AckFailed()
			if acked.Size() == 0 {
				return errors.New("a receive from any source is interrupted, and nobody has failed")
			}
			without(acked)
		case err != nil:
			return err
		case !due[s.Source]:
			if !p.dead(int(d.c.world(s.Source))) {
				return fmt.Errorf("a message from rank %d comes twice", s.Source)
			}
		case v[0] != p.value(d, s.Source):
			return wrong("a message from any source", v[0], p.value(d, s.Source))
		default:
			delete(due, s.Source)
		}
	}
	return nil
}

// neighbours has all send to all, and wait in some way.
func (p *phaseRun) neighbours(ctx context.Context, d subComm) error {
	n, me, k, how := d.c.Size(), d.c.Rank(), p.size(), p.own.IntN(3)
	in := make([][]int, n)
	var rs []Request
	for r := range n {
		in[r] = make([]int, k)
		rs = append(rs, Irecv(d.c, in[r], r, p.tag()))
	}
	out := make([]int, k)
	out[0] = p.value(d, me)
	for r := range n {
		rs = append(rs, Isend(d.c, out, (r+me)%n, p.tag()))
	}
	var err error
	switch how {
	case 0:
		err = Waitall(ctx, rs, nil)
	case 1:
		for range rs {
			if _, _, e := Waitany(ctx, rs); e != nil && err == nil {
				err = e
			}
		}
	default:
		for left := len(rs); left > 0; {
			some, e := Waitsome(ctx, rs, nil)
			if e != nil && err == nil {
				err = e
			}
			if len(some) == 0 {
				return errors.New("Waitsome returns nothing of requests that are under way")
			}
			left -= len(some)
		}
	}
	for i := range rs {
		if rs[i] != (Request{}) {
			if err == nil {
				return fmt.Errorf("request %d has not ended", i)
			}
			if _, e := rs[i].Wait(ctx); e != nil {
				if e := p.excused(d.c, e); e != nil {
					return e
				}
			}
		}
	}
	if err != nil {
		return err
	}
	for r := range n {
		if in[r][0] != p.value(d, r) {
			return wrong("Irecv", in[r][0], p.value(d, r))
		}
	}
	return nil
}

func (p *phaseRun) mprobe(ctx context.Context, d subComm) error {
	n, me, k := d.c.Size(), d.c.Rank(), p.size()
	out := make([]int, k)
	out[0] = p.value(d, me)
	r := Isend(d.c, out, (me+1)%n, p.tag())
	before := (me + n - 1) % n
	m, s, err := Mprobe(ctx, d.c, before, p.tag())
	if err == nil {
		in := make([]int, k)
		if _, err = Mrecv(ctx, m, in); err == nil && (s.Source != before || in[0] != p.value(d, before)) {
			return wrong("Mrecv", in[0], p.value(d, before))
		}
	}
	if _, e := r.Wait(ctx); err == nil {
		err = e
	}
	return err
}

func (p *phaseRun) persistent(ctx context.Context, d subComm) error {
	n, me := d.c.Size(), d.c.Rank()
	in, out := []int{0}, []int{0}
	before := (me + n - 1) % n
	send, recv := SendInit(d.c, out, (me+1)%n, p.tag()), RecvInit(d.c, in, before, p.tag())
	for i := range 3 {
		out[0] = p.value(d, me) + i
		Startall(recv, send)
		_, err := recv.Wait(ctx)
		_, err2 := send.Wait(ctx)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if in[0] != p.value(d, before)+i {
			return wrong("a persistent receive", in[0], p.value(d, before)+i)
		}
	}
	return nil
}

// derive makes a Comm, on which all agree before it is used.
func (p *phaseRun) derive(ctx context.Context, d subComm) error {
	var made *Comm
	var err error
	path := fmt.Sprintf("%s+%d", d.path, p.step)
	if color := int(d.c.box.Rank()) % 2; p.rng.IntN(2) == 0 {
		made, err = Dup(ctx, d.c)
	} else {
		made, err = Split(ctx, d.c, color, 0)
		path += fmt.Sprint(":", color)
	}
	if err != nil {
		if err := p.excused(d.c, err); err != nil {
			return err
		}
	}
	ok, aerr := p.agree(ctx, err == nil)
	switch {
	case aerr != nil:
		return aerr
	case !ok:
		return errPhase
	case err != nil:
		return fmt.Errorf("agreed on though it has failed here: %w", err)
	}
	p.comms = append(p.comms, subComm{made, path})
	return p.same(path, membersOf(made))
}
