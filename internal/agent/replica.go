package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
)

// A replica is a voter's part in what replicates the ledger: raft, over the job's own
// connections between agents. What it stores is in memory: an agent that has died does
// not come back.
type replica struct {
	agent    int
	identity *identity.Identity
	raft     *raft.Raft
	trans    *speech
	in       chan net.Conn
	ctx      context.Context
	stop     context.CancelFunc
	done     chan struct{} // closed when impatient has ended

	mu     sync.Mutex // guards what follows
	state  ledger.State
	voters []control.Voter
	head   raft.ServerID // who led, as far as is known; "": nobody yet
	quiet  time.Duration // for how long it had not been heard of when this voter last looked
}

// voterID and voterAddress are how raft calls a voter: the address has its number, so
// that who dials knows whom to expect.
func voterID(agent int) raft.ServerID { return raft.ServerID(strconv.Itoa(agent)) }

func voterAddress(v control.Voter) raft.ServerAddress {
	return raft.ServerAddress(fmt.Sprintf("%d@%s", v.Agent, strings.Join(v.Addrs, ",")))
}

func parseVoter(a raft.ServerAddress) (v control.Voter, err error) {
	number, addrs, _ := strings.Cut(string(a), "@")
	v.Agent, err = strconv.Atoi(number)
	v.Addrs = strings.Split(addrs, ",")
	return v, err
}

// newReplica takes part from now on, with connections that come in by door. The first
// has the others take part.
func newReplica(agent int, own *identity.Identity, door *buddy.Keeper, ear func(agent int) *patient.Conn, voters []control.Voter, silence time.Duration, first bool) (*replica, error) {
	r := &replica{agent: agent, identity: own, in: make(chan net.Conn), voters: voters, done: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	at := slices.IndexFunc(voters, func(v control.Voter) bool { return v.Agent == agent })
	if at < 0 {
		r.stop()
		return nil, fmt.Errorf("agent %d is no voter", agent)
	}
	c := raft.DefaultConfig()
	c.LocalID = voterID(agent)
	// Without a word for so long a voter asks for an election (see impatient); by then a
	// head without a majority is none any more.
	silence = max(silence, 20*time.Millisecond)
	c.HeartbeatTimeout = silence + aLittle
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout = silence
	c.CommitTimeout = max(silence/10, time.Millisecond)
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 1024, 256, 10*time.Second
	c.LogOutput, c.LogLevel = io.Discard, "ERROR"
	c.ShutdownOnRemove = false
	r.trans = &speech{ear: ear, silence: silence, over: r.ctx.Done(), NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer{r, voterAddress(voters[at])}, MaxPool: 2, Timeout: max(silence, agreeTime), Logger: hclog.NewNullLogger(),
		MaxRPCsInFlight: 1, // no pipelines: one whose answers end keeps who sends into it, and Shutdown, for ever
	})}
	logs, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	if first {
		var servers []raft.Server
		for _, v := range voters {
			servers = append(servers, raft.Server{ID: voterID(v.Agent), Address: voterAddress(v)})
		}
		if err := raft.BootstrapCluster(c, logs, logs, snapshots, r.trans, raft.Configuration{Servers: servers}); err != nil {
			r.trans.Close()
			r.stop()
			return nil, err
		}
	}
	var err error
	if r.raft, err = raft.NewRaft(c, (*replicated)(r), logs, logs, snapshots, r.trans); err != nil {
		r.trans.Close()
		r.stop()
		return nil, err
	}
	go r.impatient(silence)
	door.Handle(control.ProtocolRaft, r.serve)
	return r, nil
}

// aLittle is how much longer than the silence raft waits by itself.
const aLittle = time.Millisecond

// impatient has this voter ask for an election soon after it has heard of no head for the
// silence. Raft by itself looks at random times, one to two silences apart, so nearly three
// can go by; and a voter that has not looked yet refuses its vote. Raft looks when it is
// given a shorter time to wait. So here the voters look in turn, and the last that is
// needed is elected: were two to ask at the same time, neither might be, for a silence or two.
func (r *replica) impatient(silence time.Duration) {
	defer close(r.done)
	clock := time.NewTimer(silence)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
		case <-r.ctx.Done():
			return
		}
		turn := r.turn()
		if r.raft.State() == raft.Follower {
			r.trans.relay(r.raft)
		}
		quiet := time.Since(r.raft.LastContact())
		rest := silence + time.Duration(turn)*silence/voterTurns + aLittle - quiet
		if r.raft.State() == raft.Follower {
			r.mu.Lock()
			r.quiet = quiet
			r.mu.Unlock()
			if rest <= 0 {
				r.look(silence)
			}
		}
		clock.Reset(min(max(rest, silence/20), silence/10))
	}
}

// look has raft see how long it has heard of no head.
func (r *replica) look(silence time.Duration) {
	c := r.raft.ReloadableConfig()
	for _, c.HeartbeatTimeout = range []time.Duration{silence, silence + aLittle} {
		if err := r.raft.ReloadConfig(c); err != nil {
			panic(fmt.Sprintf("agent: %v", err)) // it began with as much
		}
	}
}

// lost is the agent that led before this one asked for an election, if it had not been heard of for the
// silence; -1: it had, as one that hands over is, or nobody led.
func (r *replica) lost(silence time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if agent, err := strconv.Atoi(string(r.head)); err == nil && r.quiet >= silence-silence/voterTurns {
		return agent
	}
	return -1
}

// voterTurns make a silence: each is longer than the time between two signs of life,
// which raft sends to each voter at random times, a tenth to a fifth of the silence apart.
const voterTurns = 5

// turn is how many voters look before this one, where the head is lost. It notes who that is.
func (r *replica) turn() (n int) {
	_, head := r.raft.LeaderWithID()
	r.mu.Lock()
	defer r.mu.Unlock()
	if head != "" {
		r.head = head
	}
	for _, v := range r.voters {
		if v.Agent < r.agent && voterID(v.Agent) != r.head {
			n++
		}
	}
	return n
}

// serve is the connection of another voter, until it ends.
func (r *replica) serve(c *tls.Conn, from identity.Name) {
	r.mu.Lock()
	known := slices.ContainsFunc(r.voters, func(v control.Voter) bool { return v.Agent == from.Index })
	r.mu.Unlock()
	if !known {
		return // it has no say, whatever its certificate
	}
	w := &watched{Conn: c, over: make(chan struct{})}
	select {
	case r.in <- w:
	case <-r.ctx.Done():
		return
	}
	select {
	case <-w.over:
	case <-r.ctx.Done():
	}
}

// watched is a connection that tells when it is closed.
type watched struct {
	net.Conn
	once sync.Once
	over chan struct{}
}

func (w *watched) Close() error {
	w.once.Do(func() { close(w.over) })
	return w.Conn.Close()
}

// revise is told who votes.
func (r *replica) revise(voters []control.Voter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.voters = voters
}

// close leaves, without a word to the others. It waits.
func (r *replica) close() {
	r.stop()
	<-r.done
	r.raft.Shutdown().Error()
	r.trans.Close()
}

// snapshot is the ledger as it is here.
func (r *replica) snapshot() *ledger.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := new(ledger.State)
	if err := s.Restore(r.state.Snapshot()); err != nil {
		panic(fmt.Sprintf("agent: %v", err)) // it was made by the same
	}
	return s
}

// A batch is what is replicated as one.
type batch struct {
	Whole   json.RawMessage `json:",omitempty"` // the ledger before Entries, if it is not what it was
	Entries []ledger.Entry
}

// commitTime is how long the voters may take to agree; those who never will are known
// by then.
const commitTime = 30 * time.Second

// commit returns when a majority has b, or an error: then nobody knows whether it is.
func (r *replica) commit(b batch) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	f := r.raft.Apply(text, commitTime)
	if err := f.Error(); err != nil {
		return err
	}
	err, _ = f.Response().(error)
	return err
}

// replicated is a replica as raft sees it: what is agreed on.
type replicated replica

func (r *replicated) Apply(l *raft.Log) any {
	var b batch
	if err := json.Unmarshal(l.Data, &b); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.Whole != nil {
		if err := r.state.Restore(b.Whole); err != nil {
			return err
		}
	}
	var errs []error
	for _, e := range b.Entries {
		if err := r.state.Apply(e); err != nil {
			errs = append(errs, fmt.Errorf("%w: %s", err, e.Append(nil)))
		}
	}
	return errors.Join(errs...)
}

func (r *replicated) Snapshot() (raft.FSMSnapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return image(r.state.Snapshot()), nil
}

func (r *replicated) Restore(in io.ReadCloser) error {
	defer in.Close()
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Restore(text)
}

// image is the ledger on its way to who has none.
type image []byte

func (i image) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(i); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (i image) Release() {}

// A layer is a replica's connections as raft wants them.
type layer struct {
	r   *replica
	own raft.ServerAddress
}

func (l layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.r.in:
		return c, nil
	case <-l.r.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l layer) Close() error   { l.r.stop(); return nil }
func (l layer) Addr() net.Addr { return named(l.own) }

func (l layer) Dial(a raft.ServerAddress, patience time.Duration) (net.Conn, error) {
	v, err := parseVoter(a)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(l.r.ctx, patience)
	defer stop()
	c, err := dialAgent(ctx, l.r.identity, control.ProtocolRaft, v)
	if err != nil {
		return nil, err
	}
	return dialed{c, context.AfterFunc(l.r.ctx, func() { c.Close() })}, nil
}

// dialed is a connection that ends with the replica: raft waits for who waits for an answer.
type dialed struct {
	net.Conn
	forget func() bool // the replica's end
}

func (d dialed) Close() error {
	d.forget()
	return d.Conn.Close()
}

// named is an address that is a name.
type named string

func (named) Network() string  { return "mpiv" }
func (n named) String() string { return string(n) }

// dialAgent connects to an agent, by the first of its addresses that answers: one may be of a network that is cut.
func dialAgent(ctx context.Context, own *identity.Identity, protocol string, to control.Voter) (*tls.Conn, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, err := inTurn(ctx, to.Addrs, func(ctx context.Context, addr string) (*tls.Conn, error) {
		return door.Dial(ctx, own, protocol, addr, to.Agent)
	}, func(c *tls.Conn) { c.Close() })
	if err != nil {
		return nil, fmt.Errorf("agent %d cannot be reached: %w", to.Agent, err)
	}
	return c, nil
}

// leads tells whether this voter is the one that is agreed with.
func (r *replica) leads() bool { return r.raft.State() == raft.Leader }
