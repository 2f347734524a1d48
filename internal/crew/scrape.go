package crew

import (
	"context"
	"sync"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

// scrapeID is below the reports that are answers to a crew, and go no further.
const scrapeID = 1 << 62

// A scrapes is the readings that a crew has asked its processes for.
type scrapes struct {
	mu   sync.Mutex // guards what follows
	last uint64
	open map[uint64]*scrape
}

// A scrape is one reading of each process of a crew.
type scrape struct {
	missing  map[int]bool
	readings map[int]*events.Reading
	all      chan struct{} // closed when none is missing
}

// Scrape takes a reading of every process here. Those that do not answer before ctx
// ends have nil.
func (c *Crew) Scrape(ctx context.Context) map[int]*events.Reading {
	s := &scrape{missing: map[int]bool{}, readings: map[int]*events.Reading{}, all: make(chan struct{})}
	for _, m := range c.all() {
		s.readings[m.Index] = nil
	}
	c.scrapes.mu.Lock()
	c.scrapes.last++
	id := scrapeID + c.scrapes.last
	if c.scrapes.open == nil {
		c.scrapes.open = map[uint64]*scrape{}
	}
	c.scrapes.open[id] = s
	for _, m := range c.all() { // an answer waits for mu
		if m.begun() && m.send(control.Message{Watch: &control.Watch{ID: id}}) {
			s.missing[m.Index] = true
		}
	}
	if len(s.missing) == 0 {
		close(s.all)
	}
	c.scrapes.mu.Unlock()
	select {
	case <-s.all:
	case <-ctx.Done():
	case <-c.stopping:
	}
	c.scrapes.mu.Lock()
	defer c.scrapes.mu.Unlock()
	delete(c.scrapes.open, id)
	return s.readings
}

// answered is true if r is, or was, for a scrape.
func (s *scrapes) answered(process int, r *control.Report) bool {
	if r == nil || r.ID < scrapeID {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[r.ID]; o != nil && o.missing[process] && r.Reading != nil {
		delete(o.missing, process)
		o.readings[process] = r.Reading
		if len(o.missing) == 0 {
			close(o.all)
		}
	}
	return true
}

// ended is told that a process has ended its connection.
func (s *scrapes) ended(process int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.open {
		if o.missing[process] {
			delete(o.missing, process)
			if len(o.missing) == 0 {
				close(o.all)
			}
		}
	}
}
