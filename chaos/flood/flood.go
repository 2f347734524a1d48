// Package flood asks an HTTP server for a large file over many connections at once,
// which starves whatever else that host has to send. It is bounded in time and
// number, and goes to loopback and to hosts of a lab only.
//
// The attack is that of Frechette and Avresky, "Method for Task Migration in Grid
// Environments", the section on experiments.
package flood

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
)

// The attack as it was described, and bounds of what can be asked for.
const (
	DefaultBytes       = 8_000_000
	DefaultConnections = 200
	defaultRequests    = 1_000_000
	defaultDuration    = 10 * time.Second

	MostConnections = 2000
	MostDuration    = 10 * time.Minute
	MostBytes       = 1 << 30
)

// Path is that of the file on a server.
const Path = "/file"

// Serve serves a file of so many bytes at [Path] to those who connect to l, until ctx
// ends. It closes l, and what came through it. That nobody can be accepted for a while, as
// with too many open files, is waited out; any other error ends it.
func Serve(ctx context.Context, l net.Listener, bytes int64) error {
	f, err := file(bytes)
	if err != nil {
		l.Close()
		return err
	}
	defer f.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		// Each has a place of its own in the file, which the kernel sends from.
		own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer own.Close()
		http.ServeContent(w, r, "", time.Time{}, own)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { s.Close(); close(ended) })
	err = s.Serve(netutil.LimitListener(l, MostConnections))
	s.Close() // those that were accepted, too
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// file is a file without a name.
func file(bytes int64) (*os.File, error) {
	if bytes < 1 || bytes > MostBytes {
		return nil, fmt.Errorf("flood: a file of %d bytes: it must have from 1 to %d", bytes, MostBytes)
	}
	f, err := os.CreateTemp("", "mpiv-flood-")
	if err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	err = errors.Join(os.Remove(f.Name()), f.Truncate(bytes))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("flood: %w", err)
	}
	return f, nil
}

// Options are those of an attack.
type Options struct {
	URL         string         // of the file, with the address as a number: http://10.1.0.1:80/file
	Connections int            // at once. Zero means 200.
	Requests    int64          // then it ends. Zero means a million.
	Duration    time.Duration  // then it ends, too. Zero means 10 s.
	Allow       []netip.Prefix // beside loopback, where a flood may go. A lab's, say.
}

func (o Options) withDefaults() Options {
	if o.Connections == 0 {
		o.Connections = DefaultConnections
	}
	if o.Requests == 0 {
		o.Requests = defaultRequests
	}
	if o.Duration == 0 {
		o.Duration = defaultDuration
	}
	return o
}

func (o Options) check() error {
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	addr, err := netip.ParseAddrPort(u.Host)
	if err != nil || u.Scheme != "http" {
		return fmt.Errorf("flood: %s: write the address as numbers, such as http://127.0.0.1:8080%s", o.URL, Path)
	}
	allowed := addr.Addr().IsLoopback()
	for _, p := range o.Allow {
		allowed = allowed || p.Contains(addr.Addr())
	}
	switch {
	case !allowed:
		return fmt.Errorf("flood: %v: a flood goes to loopback and to hosts of a lab only", addr)
	case o.Connections < 1 || o.Connections > MostConnections:
		return fmt.Errorf("flood: %d connections: there must be from 1 to %d", o.Connections, MostConnections)
	case o.Requests < 1:
		return fmt.Errorf("flood: %d requests: there must be 1 or more", o.Requests)
	case o.Duration < 0 || o.Duration > MostDuration:
		return fmt.Errorf("flood: it lasts %v: that must be at most %v", o.Duration, MostDuration)
	}
	return nil
}

// A Report is what an attack came to.
type Report struct {
	Requests int64 // that got the whole file
	Failed   int64 // that got an error before the end
	Bytes    int64 // of files, of requests that did not end too
	Took     time.Duration
}

func (r Report) String() string {
	return fmt.Sprintf("%d whole files, %d errors, %.1f MB in %.1f s, %.2f MB/s",
		r.Requests, r.Failed, float64(r.Bytes)/1e6, r.Took.Seconds(), float64(r.Bytes)/1e6/r.Took.Seconds())
}

// Attack asks for the file again and again, over a new connection each time, until the
// time or the requests are over, or ctx ends. It waits for all that it has started.
func Attack(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return Report{}, err
	}
	ctx, stop := context.WithTimeout(ctx, o.Duration)
	defer stop()
	t := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a flood follows nobody") }}

	var asked, whole, failed, bytes atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range o.Connections {
		wg.Go(func() {
			for ctx.Err() == nil && asked.Add(1) <= o.Requests {
				n, err := fetch(ctx, client, o.URL)
				bytes.Add(n)
				switch {
				case err == nil:
					whole.Add(1)
				case ctx.Err() == nil:
					failed.Add(1)
					select { // a host that is cut off is not asked in a loop
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
		})
	}
	wg.Wait()
	return Report{Requests: whole.Load(), Failed: failed.Load(), Bytes: bytes.Load(), Took: time.Since(began)}, nil
}

// fetch asks for the file once and returns how much of it came.
func fetch(ctx context.Context, client *http.Client, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the server answers %s", resp.Status)
	}
	return n, err
}
