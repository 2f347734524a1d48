package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// A progress tells on standard error how far the job is: as a bar on a terminal,
// otherwise as a line every few seconds. Its goroutine ends with stop.
type progress struct {
	raw, compressed, total atomic.Int64

	w        io.Writer
	terminal bool
	began    time.Time
	end      chan struct{}
	done     chan struct{}
}

func startProgress() *progress {
	if isTerminal(os.Stderr) {
		return startProgressOn(os.Stderr, true, 100*time.Millisecond)
	}
	return startProgressOn(os.Stderr, false, 3*time.Second)
}

func startProgressOn(w io.Writer, terminal bool, every time.Duration) *progress {
	p := &progress{w: w, terminal: terminal, began: time.Now(), end: make(chan struct{}), done: make(chan struct{})}
	go p.run(every)
	return p
}

// show has the numbers shown from now on. Total is 0 if it is not known.
func (p *progress) show(raw, compressed, total int64) {
	if p == nil {
		return
	}
	p.raw.Store(raw)
	p.compressed.Store(compressed)
	p.total.Store(total)
}

// stop takes the bar away and ends p. Twice is harmless, but only one goroutine
// may.
func (p *progress) stop() {
	if p == nil {
		return
	}
	select {
	case <-p.end:
	default:
		close(p.end)
		<-p.done
	}
}

func (p *progress) run(every time.Duration) {
	defer close(p.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	before, at := int64(0), p.began
	for {
		select {
		case <-p.end:
			if p.terminal {
				fmt.Fprint(p.w, "\r\x1b[K")
			}
			return
		case now := <-tick.C:
			raw := p.raw.Load()
			rate := float64(raw-before) / now.Sub(at).Seconds()
			if p.terminal {
				// A bar is drawn often; its rate is that of the last second or so.
				if now.Sub(at) >= time.Second {
					before, at = raw, now
				}
				fmt.Fprintf(p.w, "\r%s\x1b[K", progressText(raw, p.compressed.Load(), p.total.Load(), rate, true))
				continue
			}
			before, at = raw, now
			fmt.Fprintf(p.w, "compress: %s\n", progressText(raw, p.compressed.Load(), p.total.Load(), rate, false))
		}
	}
}

const barCells = 30

func progressText(raw, compressed, total int64, rate float64, bar bool) string {
	if raw == 0 {
		return "nothing is written yet"
	}
	text := fmt.Sprintf("%s at %s/s, %s of it left", bytesText(raw), bytesText(int64(rate)), ratioText(raw, compressed))
	if total <= 0 {
		return text
	}
	part := min(float64(raw)/float64(total), 1)
	text = fmt.Sprintf("%3.0f %%  %s", 100*part, text)
	if bar {
		cells := int(part * barCells)
		text = "[" + strings.Repeat("█", cells) + strings.Repeat("·", barCells-cells) + "] " + text
	}
	return text
}
