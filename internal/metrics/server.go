package metrics

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Bounds of what those who scrape, or claim to, may cost.
const (
	connections = 16
	scrapes     = 2 // at a time
	headerBytes = 8 << 10
	headerTime  = 2 * time.Second
	answerTime  = 5 * time.Second
	idleTime    = time.Minute
)

// A Server serves /metrics.
type Server struct {
	http     http.Server
	listener net.Listener
	done     chan struct{}

	mu     sync.RWMutex // held for reading while something is collected
	closed bool

	guests guests
}

// Serve listens on addr, "host:port", and serves what c collects with the labels of
// this job and host, and Go's metrics of this process. Close ends it.
func Serve(addr, job, host string, c *Collector) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--metrics %s: the port is taken on this host; give another, or port 0 for any that is free", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", addr, err)
	}
	registry := prometheus.NewRegistry()
	with := prometheus.WrapRegistererWith(prometheus.Labels{always[0]: job, always[1]: host}, registry)
	with.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := &Server{listener: l, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.GathererFunc(s.gather(registry)), promhttp.HandlerOpts{MaxRequestsInFlight: scrapes, Timeout: answerTime}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "mpiv job %s, host %s: see /metrics\n", job, host)
	})
	s.http = http.Server{
		Handler: s.guests.serving(mux), ConnContext: s.guests.come, ConnState: s.guests.leave,
		MaxHeaderBytes: headerBytes, ErrorLog: log.New(nowhere{}, "", 0),
		ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: answerTime + time.Second, IdleTimeout: idleTime,
	}
	go func() {
		defer close(s.done)
		s.http.Serve(l)
	}()
	return s, nil
}

// Addr is where s listens.
func (s *Server) Addr() *net.TCPAddr { return s.listener.Addr().(*net.TCPAddr) }

// gather is that of g until s is closed.
func (s *Server) gather(g prometheus.Gatherer) func() ([]*dto.MetricFamily, error) {
	return func() ([]*dto.MetricFamily, error) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		if s.closed {
			return nil, net.ErrClosed
		}
		return g.Gather()
	}
}

// Close ends every connection, and waits for what is being collected. Twice is
// harmless.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

// guests are the connections, the one first that has been answered, or has come, the longest ago. One too many, and the first
// goes that is not being answered, so that those who are silent keep no scrape out.
type guests struct {
	mu  sync.Mutex
	all []*guest
}

type guest struct {
	conn     net.Conn
	answered bool // at the moment; guarded by guests.mu
}

type guestKey struct{}

// come is http.Server.ConnContext.
func (g *guests) come(ctx context.Context, c net.Conn) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := &guest{conn: c}
	g.all = append(g.all, x)
	if len(g.all) > connections {
		i := slices.IndexFunc(g.all, func(x *guest) bool { return !x.answered })
		g.all[i].conn.Close() // there is x, at least
		g.all = slices.Delete(g.all, i, i+1)
	}
	return context.WithValue(ctx, guestKey{}, x)
}

// leave is http.Server.ConnState.
func (g *guests) leave(c net.Conn, state http.ConnState) {
	if state == http.StateClosed {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.all = slices.DeleteFunc(g.all, func(x *guest) bool { return x.conn == c })
	}
}

// serving is h for guests.
func (g *guests) serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := r.Context().Value(guestKey{}).(*guest)
		g.mu.Lock()
		x.answered = true
		g.mu.Unlock()
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			x.answered = false
			if i := slices.Index(g.all, x); i >= 0 {
				g.all = append(slices.Delete(g.all, i, i+1), x)
			}
		}()
		h.ServeHTTP(w, r)
	})
}

// nowhere takes what net/http has to say of strangers.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
