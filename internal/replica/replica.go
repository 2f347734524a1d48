// Package replica has the agents that vote agree on the ledger of a job, and on which of them leads.
//
// They do so by raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm"), over
// the connections between agents that there are anyway where that is possible.
package replica

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
)

// A Replica is a voter's part in what replicates the ledger: raft, over the job's own
// connections between agents. What it stores is in memory: an agent that has died does
// not come back.
type Replica struct {
	agent    int
	identity *identity.Identity
	raft     *raft.Raft
	trans    *speech
	asked    chan raft.RPC // what raft is asked
	in       chan net.Conn
	ctx      context.Context
	stop     context.CancelFunc
	own      sync.WaitGroup // of its goroutines

	mu     sync.Mutex // guards what follows
	state  ledger.State
	voters []control.Voter
	head   raft.ServerID // which other led last, as far as is known; "": none yet
	quiet  time.Duration // for how long it had not been heard of when this voter last looked
	dead   raft.ServerID // that one, if it was said to be
	deadAt time.Time     // then
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

// A Port is where other voters connect to: it has each of them that is of that protocol served by f.
type Port interface {
	Handle(protocol string, f func(c *tls.Conn, from identity.Name))
}

// A Config is what Join needs, all of it.
type Config struct {
	Agent    int                           // whose this is
	Identity *identity.Identity            // of that agent
	Port     Port                          // of that agent
	Ear      func(agent int) *patient.Conn // over which an agent is heard anyway; nil: there is none
	Voters   []control.Voter               // this one among them
	Silence  time.Duration                 // for how long nothing may be heard of who leads
	First    bool                          // this one has the others take part
}

// Join takes part from now on, until Close.
func Join(cfg Config) (*Replica, error) {
	r := &Replica{agent: cfg.Agent, identity: cfg.Identity, in: make(chan net.Conn), voters: cfg.Voters}
	r.ctx, r.stop = context.WithCancel(context.Background())
	at := slices.IndexFunc(cfg.Voters, func(v control.Voter) bool { return v.Agent == cfg.Agent })
	if at < 0 {
		r.stop()
		return nil, fmt.Errorf("agent %d is no voter", cfg.Agent)
	}
	c := raft.DefaultConfig()
	c.LocalID = voterID(cfg.Agent)
	// Without a word for so long a voter asks for an election (see impatient); by then a
	// head without a majority is none any more.
	silence := max(cfg.Silence, 20*time.Millisecond)
	c.HeartbeatTimeout = silence + aLittle
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout = silence
	c.CommitTimeout = max(silence/10, time.Millisecond)
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 1024, 256, 10*time.Second
	c.LogOutput, c.LogLevel = io.Discard, "ERROR"
	c.ShutdownOnRemove = false
	r.asked = make(chan raft.RPC)
	r.trans = &speech{ear: cfg.Ear, silence: silence, asked: r.asked, over: r.ctx.Done(), NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer{r, voterAddress(cfg.Voters[at])}, MaxPool: 2, Timeout: max(silence, agreeTime), Logger: hclog.NewNullLogger(),
		MaxRPCsInFlight: 1, // no pipelines: one whose answers end keeps who sends into it, and Shutdown, for ever
	})}
	logs, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	if cfg.First {
		var servers []raft.Server
		for _, v := range cfg.Voters {
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
	b := &ballot{in: r.trans.NetworkTransport.Consumer(), out: r.asked, raft: r.raft, last: func() position { return r.end(logs) }, silence: silence, over: r.ctx.Done()}
	r.own.Go(b.run)
	r.own.Go(func() { r.impatient(silence) })
	cfg.Port.Handle(control.ProtocolRaft, r.serve)
	return r, nil
}

// end is where this voter's log ends; after all others if that is not known, as after a snapshot.
func (r *Replica) end(logs raft.LogStore) position {
	at := r.raft.LastIndex()
	if at == 0 {
		return position{}
	}
	var l raft.Log
	if logs.GetLog(at, &l) != nil {
		return position{term: math.MaxUint64}
	}
	return position{l.Term, l.Index}
}

// serve is the connection of another voter, until it ends.
func (r *Replica) serve(c *tls.Conn, from identity.Name) {
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

// Revise is told who votes.
func (r *Replica) Revise(voters []control.Voter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.voters = voters
}

// Close leaves, without a word to the others. It waits.
func (r *Replica) Close() {
	r.stop()
	r.own.Wait()
	r.raft.Shutdown().Error()
	r.trans.Close()
}

// Ledger is a copy of the ledger as it is here.
func (r *Replica) Ledger() *ledger.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := new(ledger.State)
	if err := s.Restore(r.state.Snapshot()); err != nil {
		panic(fmt.Sprintf("replica: %v", err)) // it was made by the same
	}
	return s
}

// A Batch is what is replicated as one.
type Batch struct {
	Whole   json.RawMessage `json:",omitempty"` // the ledger before Entries, if it is not what it was
	Entries []ledger.Entry
}

// commitTime is how long the voters may take to agree; those who never will are known
// by then.
const commitTime = 30 * time.Second

// Commit returns when a majority has b, or an error: then nobody knows whether it is.
func (r *Replica) Commit(b Batch) error {
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

// replicated is a Replica as raft sees it: what is agreed on.
type replicated Replica

func (r *replicated) Apply(l *raft.Log) any {
	var b Batch
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
			errs = append(errs, fmt.Errorf("%w: %v", err, e))
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

// A layer is a Replica's connections as raft wants them.
type layer struct {
	r   *Replica
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
	c, err := door.Reach(ctx, l.r.identity, control.ProtocolRaft, v)
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

// Leads tells whether this voter is the one that is agreed with.
func (r *Replica) Leads() bool { return r.raft.State() == raft.Leader }

// Leading tells, over and over, whether this voter has become, or is no more, the one that is agreed with.
func (r *Replica) Leading() <-chan bool { return r.raft.LeaderCh() }

// Done is closed when this voter is about to leave.
func (r *Replica) Done() <-chan struct{} { return r.ctx.Done() }

// Term is that of the last election.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// Barrier returns when all that was agreed on before is in the ledger here.
func (r *Replica) Barrier() error { return r.raft.Barrier(commitTime).Error() }

// HandOver begins to have another voter elected, if this one leads.
func (r *Replica) HandOver() { r.raft.LeadershipTransfer() }

// HandOverTo begins to have v elected, if this one leads. The result waits for it.
func (r *Replica) HandOverTo(v control.Voter) (wait func() error) {
	return r.raft.LeadershipTransferToServer(voterID(v.Agent), voterAddress(v)).Error
}

// ErrHandingOver is of what cannot be agreed on just now, since another is to be elected: that may
// come to nothing, and then it can be tried again.
var ErrHandingOver = raft.ErrLeadershipTransferInProgress

// Add has v vote from now on, too, if this voter leads. It returns when that is agreed on.
func (r *Replica) Add(v control.Voter) error {
	return r.raft.AddVoter(voterID(v.Agent), voterAddress(v), 0, commitTime).Error()
}

// Remove has an agent vote no more, if this voter leads. It returns when that is agreed on.
func (r *Replica) Remove(agent int) error {
	return r.raft.RemoveServer(voterID(agent), 0, commitTime).Error()
}
