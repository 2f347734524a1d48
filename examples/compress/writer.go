package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// A writerEnd is the writer's connection to the others.
type writerEnd interface {
	survivor
	// window is how many blocks may be between reader and writer.
	window() int
	// next is a compressed block, in whatever order; nil when there are no more.
	next(ctx context.Context) ([]byte, error)
	// release gives back a block that next gave.
	release(msg []byte)
	// credit lets the reader give out n blocks more, or is creditStop or
	// creditDone.
	credit(ctx context.Context, n int) error
	// verdict is what the reader said at the end.
	verdict(ctx context.Context) (verdict, error)
}

// A writer puts the blocks in order and writes them.
type writer struct {
	opt      options
	end      writerEnd
	out      *output   // nil: it could not be opened
	again    bool      // the rank goes on from another process
	times    *timings  // nil: not wanted
	progress *progress // nil: not wanted
	began    time.Time
	sum      summary

	timed int64  // bytes of timings that are written
	tail  []byte // the last bytes of the output that are written

	held [][]byte // what came before its turn, by seq modulo length
	due  int64    // seq of the block to write next
	owed int      // credits that the reader has not been told of
	err  error    // why nothing is written any more
}

// write is the last role. The summary is nil if the reader failed. As read does,
// it brings the other ranks to an orderly end when it fails itself.
func write(ctx context.Context, opt options, end writerEnd) (*summary, error) {
	w := &writer{opt: opt, end: end, held: make([][]byte, end.window()), began: time.Now()}
	w.sum = summary{Input: w.opt.inputName(), Output: w.opt.output, BlocksByRank: map[int64]int64{}}
	var err error
	w.again, err = end.restore(ctx, vars{"held": &w.held, "due": &w.due, "owed": &w.owed, "summary": &w.sum, "timings": &w.timed, "tail": &w.tail, "began": &w.began})
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	if err := w.blocks(ctx); err != nil {
		if errors.Is(err, mpiv.ErrMoved) {
			w.leave()
		}
		return nil, err
	}
	v, err := end.verdict(ctx)
	if err != nil {
		return nil, err
	}
	if w.err == nil && v.Whole {
		w.err = w.finish(v)
	}
	w.close() // before anyone hears that we are done
	if err := end.credit(ctx, creditDone); err != nil {
		return nil, err
	}
	if w.err != nil || !v.Whole {
		return nil, w.err
	}
	return &w.sum, nil
}

// begin opens what is written to and says so to the reader, unless it was told before.
func (w *writer) begin(ctx context.Context) error {
	switch w.err = w.open(); {
	case w.err != nil:
		return w.end.credit(ctx, creditStop)
	case w.again:
		return nil
	}
	return w.end.credit(ctx, w.end.window())
}

// open opens what is written to, where the summary says.
func (w *writer) open() (err error) {
	if w.opt.csv != "" {
		if w.times, err = openTimings(w.opt.csv, &w.timed, w.began); err != nil {
			return err
		}
	}
	if w.out, err = openOutput(w.opt, w.again, w.sum.CompressedBytes, w.tail); err != nil {
		return err
	}
	if !w.opt.quiet {
		w.progress = startProgress()
	}
	return nil
}

// close ends the progress and leaves no output that is not finished. Twice is
// harmless.
func (w *writer) close() {
	w.progress.stop()
	if w.out != nil {
		w.out.abandon()
	}
	w.times.close()
}

// blocks takes what comes until there is no more. Its error is that of the
// connection; w.err is that of the output.
func (w *writer) blocks(ctx context.Context) error {
	for {
		if w.err == nil && w.out.rewritable() {
			if err := w.end.safePoint(ctx); err != nil {
				return err
			}
		}
		msg, err := w.end.next(ctx)
		if err != nil || msg == nil {
			return err
		}
		slot := &w.held[headerOf(msg).seq%int64(len(w.held))]
		if *slot != nil {
			panic(fmt.Sprintf("block %d came beyond the window of %d after block %d", headerOf(msg).seq, len(w.held), w.due))
		}
		*slot = msg
		if err := w.advance(ctx); err != nil {
			return err
		}
	}
}

// advance writes the blocks whose turn it is.
func (w *writer) advance(ctx context.Context) error {
	for {
		slot := &w.held[w.due%int64(len(w.held))]
		if *slot == nil {
			return nil
		}
		if w.err == nil {
			w.err = w.writeBlock(*slot)
			if err := w.tell(ctx); err != nil {
				return err
			}
		}
		w.end.release(*slot)
		*slot = nil
		w.due++
	}
}

// tell tells the reader of what was written, a few blocks at a time: each message
// takes a core away from those who compress.
func (w *writer) tell(ctx context.Context) error {
	if w.err != nil {
		return w.end.credit(ctx, creditStop)
	}
	if w.owed++; w.owed < len(w.held)/4 {
		return nil
	}
	n := w.owed
	w.owed = 0
	return w.end.credit(ctx, n)
}

func (w *writer) writeBlock(msg []byte) error {
	h, frame := headerOf(msg), msg[headerBytes:]
	if _, err := w.out.Write(frame); err != nil {
		return err
	}
	w.sum.Blocks++
	w.sum.RawBytes += h.raw
	w.sum.CompressedBytes += int64(len(frame))
	w.tail = append(w.tail[:0], frame[max(0, len(frame)-tailBytes):]...)
	w.sum.BlocksByRank[h.by]++
	w.progress.show(w.sum.RawBytes, w.sum.CompressedBytes, h.total)
	return w.times.add(h, len(frame))
}

// leave closes what another process goes on writing to.
func (w *writer) leave() {
	w.progress.stop()
	w.out.leave()
	w.times.close()
}

// finish makes the output what it shall be.
func (w *writer) finish(v verdict) error {
	w.progress.stop()
	if w.opt.verify {
		if err := w.out.verify(v.Sum); err != nil {
			return err
		}
		w.sum.Verified, w.sum.SHA256 = true, hex.EncodeToString(v.Sum[:])
	}
	if err := w.times.close(); err != nil {
		return err
	}
	if err := w.out.finish(); err != nil {
		return err
	}
	w.sum.end(time.Since(w.began))
	return nil
}
