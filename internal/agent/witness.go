package agent

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/witness"
)

// A message that leaves a host waits until the choices on which it may hang are known on
// another. The agent sends them to its buddy as soon as a message waits, over a connection
// of their own: a snapshot in the same one would hold everybody up.
//
// What is sent at a time has no effect without its causes: all choices, of all ranks of the
// host, up to a moment. Who goes on from it does not wait for a message that nobody sends.

// choices are some of a life of a rank, in order, as they are in its file.
type choices struct {
	Rank   int
	Epoch  uint32
	Oldest uint64 // what is before is covered
	First  uint64 // number of the first
	Count  int
	all    []checkpoint.Determinant
}

// chosen ends them.
type chosen struct {
	Brought bool `json:",omitempty"` // it is all that Agent knows of those of Rank
	Rank    int
	Agent   int
}

const (
	determinantLen = 25
	choicesMost    = 1 << 20 // in one parcel
)

// bytes is how the records follow the parcel.
func (c *choices) bytes() []byte {
	out := make([]byte, 0, len(c.all)*determinantLen)
	for _, d := range c.all {
		out = append(out, d.Kind)
		out = binary.LittleEndian.AppendUint32(out, uint32(d.Source))
		out = binary.LittleEndian.AppendUint32(out, d.Count)
		out = binary.LittleEndian.AppendUint64(out, d.Seq)
		out = binary.LittleEndian.AppendUint64(out, d.Value)
	}
	return out
}

// read reads them.
func (c *choices) read(in *bufio.Reader) error {
	if c.Count < 0 || c.Count > choicesMost || c.Rank < 0 || c.Oldest > c.First {
		return fmt.Errorf("%d choices of rank %d: at most %d, and not before they were made", c.Count, c.Rank, choicesMost)
	}
	var b [determinantLen]byte
	for range c.Count {
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return err
		}
		c.all = append(c.all, checkpoint.Determinant{
			Kind: b[0], Source: int32(binary.LittleEndian.Uint32(b[1:])), Count: binary.LittleEndian.Uint32(b[5:]),
			Seq: binary.LittleEndian.Uint64(b[9:]), Value: binary.LittleEndian.Uint64(b[17:]),
		})
	}
	return nil
}

// A target is who is to know them, and since which change of buddies.
type target struct {
	to   control.Buddy
	turn uint64 // 0: none was told yet
}

// A hearing is what is known here of the choices of a life on another host.
type hearing struct {
	d    *checkpoint.Determinants
	base uint64 // number that its first has in the other file
}

// end is the number of the next.
func (h *hearing) end() uint64 { return h.base + h.d.Len() }

// An end is that of a rank's lives up to one: what they choose from then on counts for nobody.
type end struct {
	epoch uint32
	until time.Time // who tells of it is refused
}

// closeBook hears no more of choices of a life.
func (b *buddies) closeBook(c control.Close) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Epoch >= b.ends[c.Rank].epoch {
		b.ends[c.Rank] = end{c.Epoch, time.Now().Add(c.For)}
	}
}

// hear keeps what came over a connection: all of it, or nothing if that was given up. What
// was brought has been heard before, by another agent.
func (b *buddies) hear(from net.Conn, said []choices, brought bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, welcome := b.guests[from]; !welcome || b.closed || b.dir == "" {
		return errors.New("the agent is not ready for choices")
	}
	for _, c := range said {
		if e := b.ends[c.Rank]; c.Epoch <= e.epoch && !brought {
			if time.Now().Before(e.until) {
				return fmt.Errorf("rank %d goes on elsewhere: nothing that it chooses here counts", c.Rank)
			}
			continue
		}
		if err := b.hearOf(c); err != nil {
			return err
		}
	}
	return nil
}

func (b *buddies) hearOf(c choices) error {
	l := life{c.Rank, c.Epoch}
	if c.Epoch < b.forgot[c.Rank] {
		return nil
	}
	h := b.heard[l]
	if h == nil || c.First > h.end() { // what ends before h begins is old
		file := filepath.Join(b.dir, fmt.Sprintf("witness-%d.%d", c.Rank, c.Epoch))
		d, err := checkpoint.ReplaceDeterminants(file, c.all)
		if err != nil {
			return err
		}
		if h != nil {
			h.d.Close()
		}
		b.heard[l] = &hearing{d, c.First}
		return nil
	}
	for i, rec := range c.all {
		if c.First+uint64(i) == h.end() {
			if err := h.d.Append(rec); err != nil {
				return err
			}
		}
	}
	if c.Oldest > h.base {
		return h.d.Truncate(c.Oldest - h.base)
	}
	return nil
}

// hearsay is of whose choices something is known here.
func (b *buddies) hearsay() []control.Heard {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []control.Heard
	for l := range b.heard {
		all = append(all, control.Heard{Rank: l.rank, Epoch: l.epoch})
	}
	return all
}

// idle is how long choices for which no message waits are not sent on.
const idle = 100 * time.Millisecond

// testify sends this host's choices to its buddy until close.
func (b *buddies) testify(page *witness.Page) {
	w := &testimony{b: b, page: page, files: map[string]*deed{}}
	defer w.end()
	for page.Sleep(idle) {
		b.mu.Lock()
		to, gaveUp := b.chosen, b.gaveUp
		b.mu.Unlock()
		w.turnTo(to)
		switch {
		case to.turn == gaveUp: // or nobody was named yet
		case len(to.to.Addrs) == 0:
			page.Witness(witness.Alone)
		case !w.told || page.Recorded() != page.Witnessed():
			w.tell()
		}
	}
}

// A testimony is what the goroutine of testify has.
type testimony struct {
	b      *buddies
	page   *witness.Page
	to     target
	line   *parcels // nil: none
	files  map[string]*deed
	looked uint64    // Files of the page when they were looked for
	told   bool      // the buddy knows what there was when it became one
	failed time.Time // to tell it was tried in vain since then; zero: it was not
}

// A deed is a file of choices of this host.
type deed struct {
	life
	d    *checkpoint.Determinants
	next uint64 // what is before is known to the buddy
	some bool   // the buddy knows of the file
}

func (w *testimony) end() {
	w.hangUp()
	for _, s := range w.files {
		s.d.Close()
	}
}

func (w *testimony) hangUp() {
	if w.line != nil {
		w.b.mu.Lock()
		w.b.telling = nil
		w.b.mu.Unlock()
		w.b.dismiss(w.line.raw())
		w.line = nil
	}
}

// turnTo is told who the buddy is.
func (w *testimony) turnTo(to target) {
	if w.to.turn == to.turn {
		return
	}
	w.hangUp()
	w.to, w.failed = to, time.Time{}
	for _, s := range w.files {
		s.next, s.some = 0, false
	}
	w.told = false
	if w.page.Witnessed() == witness.Alone {
		w.page.Witness(w.page.Recorded()) // nobody has waited for these
	}
}

// tell has the buddy know all.
func (w *testimony) tell() {
	n, err := w.tellAll()
	if err == nil {
		w.failed, w.told = time.Time{}, true
		w.page.Witness(n)
		return
	}
	w.hangUp()
	select {
	case <-time.After(20 * time.Millisecond): // whoever waits would wake this at once
	case <-w.b.ctx.Done():
	}
	switch now := time.Now(); {
	case w.b.ctx.Err() != nil:
	case w.failed.IsZero():
		w.failed = now
	case now.Sub(w.failed) > carryTime:
		w.b.mu.Lock()
		w.b.gaveUp = w.to.turn
		w.b.mu.Unlock()
		w.b.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: -1, Agent: w.to.to.Agent, Reason: err.Error()}})
	}
}

// errStale: there is another buddy.
var errStale = errors.New("it is not told any more")

func (w *testimony) tellAll() (recorded uint64, err error) {
	if w.line == nil {
		conn, err := w.b.callFor(w.to.to)
		if err != nil {
			return 0, err
		}
		w.line = conn
		w.b.mu.Lock()
		stale := w.b.chosen.turn != w.to.turn
		w.b.telling = conn.raw()
		w.b.mu.Unlock()
		if stale {
			return 0, errStale
		}
	}
	recorded, all, err := w.gather()
	if err != nil {
		return 0, err
	}
	if err := w.line.testify(all, chosen{}); err != nil {
		return 0, err
	}
	for i := range all {
		s := w.files[w.b.choicesFile(life{all[i].Rank, all[i].Epoch})]
		s.next, s.some = all[i].First+uint64(len(all[i].all)), true
	}
	return recorded, nil
}

// gather is what the buddy does not know: of all files, up to a moment. It is such when
// nobody has recorded a choice while it was read.
func (w *testimony) gather() (recorded uint64, all []choices, err error) {
	defer w.page.Still(false)
	for tries := 1; ; tries++ {
		w.page.Still(tries > 3)
		recorded = w.page.Recorded()
		if err := w.look(); err != nil {
			return 0, nil, err
		}
		all = all[:0]
		for _, s := range w.files {
			c, err := choicesOf(s.life, s.d, s.next)
			if err != nil {
				return 0, nil, err
			}
			if len(c.all) > 0 || !s.some {
				all = append(all, c)
			}
		}
		if w.page.Recorded() == recorded {
			return recorded, all, nil
		}
		if w.b.ctx.Err() != nil {
			return 0, nil, w.b.ctx.Err()
		}
	}
}

// choicesOf is what is in d from number next on.
func choicesOf(l life, d *checkpoint.Determinants, next uint64) (choices, error) {
	c := choices{Rank: l.rank, Epoch: l.epoch, Oldest: d.First()}
	c.First = max(next, c.Oldest)
	for i, rec := range d.From(c.First) {
		if len(c.all) == 0 {
			c.First = i
		}
		c.all = append(c.all, rec)
	}
	return c, d.Err()
}

// look opens the files that are new, and forgets those that were removed.
func (w *testimony) look() error {
	n := w.page.Files()
	if n == w.looked {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(w.b.dir, "choices-*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		l, ok := lifeOf(name)
		if !ok || w.files[name] != nil {
			continue
		}
		d, err := checkpoint.OpenDeterminants(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		w.files[name] = &deed{life: l, d: d}
	}
	for name, s := range w.files {
		if !slices.Contains(names, name) {
			s.d.Close()
			delete(w.files, name)
		}
	}
	w.looked = n
	return nil
}

// lifeOf is which life a file KIND-R.E is of.
func lifeOf(name string) (l life, ok bool) {
	base := filepath.Base(name)
	text := base[strings.LastIndexByte(base, '-')+1:]
	r, e, ok := strings.Cut(text, ".")
	rank, err1 := strconv.Atoi(r)
	epoch, err2 := strconv.ParseUint(e, 10, 32)
	return life{rank, uint32(epoch)}, ok && err1 == nil && err2 == nil
}

func (b *buddies) choicesFile(l life) string {
	return filepath.Join(b.dir, fmt.Sprintf("choices-%d.%d", l.rank, l.epoch))
}

// testify sends choices and waits until they are kept.
func (c *parcels) testify(all []choices, end chosen) error {
	for i := range all {
		x := all[i]
		for len(x.all) > choicesMost {
			part := x
			part.all, part.Count = x.all[:choicesMost], choicesMost
			if err := c.send(parcel{Choices: &part}, part.bytes()); err != nil {
				return err
			}
			x.First, x.all = x.First+choicesMost, x.all[choicesMost:]
		}
		x.Count = len(x.all)
		if err := c.send(parcel{Choices: &x}, x.bytes()); err != nil {
			return err
		}
	}
	if err := c.send(parcel{Chosen: &end}, nil); err != nil {
		return err
	}
	if err := c.out.Flush(); err != nil {
		return err
	}
	c.conn.SetReadDeadline(time.Now().Add(carryTime))
	answer, err := c.receive()
	switch {
	case err != nil:
		return err
	case answer.Kept == nil:
		return errors.New("it did not say what has become of the choices")
	case answer.Kept.Error != "":
		return errors.New(answer.Kept.Error)
	}
	return nil
}

// callFor connects to an agent. The connection ends with close, too; dismiss ends it.
func (b *buddies) callFor(to control.Buddy) (*parcels, error) {
	var errs []error
	for _, addr := range to.Addrs {
		conn, err := b.dial(addr, to.Agent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !b.admit(conn.NetConn(), to.Agent) {
			conn.Close()
			return nil, net.ErrClosed
		}
		return newParcels(conn), nil
	}
	return nil, fmt.Errorf("agent %d cannot be reached: %w", to.Agent, errors.Join(errs...))
}

// bring has another agent know all that is known here of the choices of a rank.
func (b *buddies) bring(c control.Copy) {
	var err error
	for since := time.Now(); time.Since(since) < carryTime; {
		if err = b.bringOnce(c); err == nil || b.ctx.Err() != nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-b.ctx.Done():
			return
		}
	}
	b.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: c.Rank, Agent: c.To.Agent, Reason: err.Error()}})
}

func (b *buddies) bringOnce(c control.Copy) error {
	var all []choices
	own := false // some were made here
	for _, kind := range []string{"choices", "witness"} {
		names, _ := filepath.Glob(filepath.Join(b.dir, fmt.Sprintf("%s-%d.*", kind, c.Rank)))
		for _, name := range names {
			l, ok := lifeOf(name)
			if !ok || l.epoch < c.Epoch {
				continue
			}
			d, err := checkpoint.OpenDeterminants(name)
			if err != nil {
				continue // it was removed meanwhile, or is about to be made
			}
			part, err := choicesOf(l, d, 0)
			d.Close()
			if err != nil {
				return err
			}
			if kind == "witness" {
				b.mu.Lock()
				if h := b.heard[l]; h != nil {
					part.First, part.Oldest = part.First+h.base, part.Oldest+h.base
				}
				b.mu.Unlock()
			}
			all = append(all, part)
			own = own || kind == "choices"
		}
	}
	if own { // they hang on those of the rank's neighbours here, and must not outlive them
		if err := b.awaitWitness(); err != nil {
			return err
		}
	}
	line, err := b.callFor(c.To)
	if err != nil {
		return err
	}
	defer b.dismiss(line.raw())
	return line.testify(all, chosen{Brought: true, Rank: c.Rank, Agent: b.identity.Name().Index})
}

// awaitWitness waits until all choices up to now are known to the buddy. What hangs on those
// of neighbours must not outlive them: a snapshot, and a rank's choices where it goes on elsewhere.
func (b *buddies) awaitWitness() error {
	b.mu.Lock()
	page := b.page
	b.mu.Unlock()
	if page == nil {
		return nil
	}
	for n, since := page.Recorded(), time.Now(); page.Witnessed() < n; {
		page.Wake()
		if time.Since(since) > carryTime {
			return errors.New("the choices of the ranks could not be sent")
		}
		select {
		case <-time.After(time.Millisecond):
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	}
	return nil
}
