package agent

import (
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

const (
	readEvery = time.Second
	pollLease = 3 * time.Second // who asks is taken to ask again within it
	watchID   = 1 << 61         // of the reports that processes send while somebody watches; those of rounds are lower
)

// A reader knows whether somebody watches. It is owned by the loop.
type reader struct {
	until   time.Time // somebody asks, and will again
	waiting bool      // for until
	reading bool      // the processes have been told to send readings
}

// lookAt has processes send readings, or no more, as somebody watches or not.
func (a *Agent) lookAt() {
	watched := len(a.news.subscribers) > 0 || time.Now().Before(a.reader.until)
	if !a.toldStart || watched == a.reader.reading {
		return
	}
	a.reader.reading = watched
	for _, p := range a.members() {
		a.tellToRead(p)
	}
}

// tellToRead has p send readings, or no more.
func (a *Agent) tellToRead(p *process) {
	w := control.Watch{ID: watchID}
	if a.reader.reading {
		w.Every = readEvery
	}
	p.send(control.Message{Watch: &w})
}

// lease counts as watching for a while.
func (a *Agent) lease() {
	a.reader.until = time.Now().Add(pollLease)
	a.lookAt()
	if a.reader.waiting {
		return
	}
	a.reader.waiting = true
	var expire func()
	expire = func() {
		if left := time.Until(a.reader.until); left > 0 {
			a.after(left, expire)
			return
		}
		a.reader.waiting = false
		a.lookAt()
	}
	a.after(pollLease, expire)
}

// read is told what p counts.
func (a *Agent) read(p *process, r *events.Reading) {
	known := &a.news.state.Processes[p.index]
	if p.exited || known.Reading != nil && r.Up <= known.Reading.Up {
		return
	}
	strangers := known.Refused
	for _, l := range r.Links {
		path := l.Path
		if path.Peer < 0 || path.Peer >= len(a.processes) || path.Network == "" {
			continue
		}
		if before, seen := known.Paths[path.Peer]; !seen || before != path {
			a.emitOf(p, events.Event{Kind: events.LinkPath, Text: pathText(before, path), Path: &path})
		}
	}
	a.emitOf(p, events.Event{Kind: events.ProcessReading, Reading: r})
	if r.Strangers > strangers {
		a.emitOf(p, events.Event{Kind: events.StrangerRefused, Text: "whoever it was could not say whose process it is", Refused: &events.Refused{Total: r.Strangers}})
	}
}

// pathText says what has changed.
func pathText(before, now events.Path) string {
	text := "over " + now.Network + ", " + now.Class
	if before.Network != "" && (before.Network != now.Network || before.Class != now.Class) {
		text += " and no longer over " + before.Network + ", " + before.Class
	}
	if now.Why != "" {
		text += ": " + now.Why
	}
	return text
}
