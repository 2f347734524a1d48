package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/mpiv/mpiv/mpiv"
)

// A readerEnd is the reader's connection to the others.
type readerEnd interface {
	survivor
	// room is space for the next block. It is given back with give.
	room() []byte
	// give hands a block to the first compressor that is free, when the writer
	// can take one block more. It fails with errStopped if the writer gave up.
	give(ctx context.Context, msg []byte) error
	// end tells the others that there are no more blocks, and waits until the
	// writer is done.
	end(ctx context.Context, v verdict) error
}

// errStopped: the writer takes no more, and will say why.
var errStopped = errors.New("the writer has stopped")

// read cuts the input into blocks and gives them away. Whatever happens, the
// other ranks come to an orderly end.
func read(ctx context.Context, opt options, out readerEnd) error {
	sum := sha256.New()
	err := readBlocks(ctx, opt, out, sum)
	if ctx.Err() != nil || errors.Is(err, mpiv.ErrMoved) {
		return err
	}
	v := verdict{Whole: err == nil}
	sum.Sum(v.Sum[:0])
	if endErr := out.end(ctx, v); err == nil || errors.Is(err, errStopped) {
		return endErr
	}
	return err
}

func readBlocks(ctx context.Context, opt options, out readerEnd, sum hash.Hash) error {
	var seq int64
	if _, err := out.restore(ctx, vars{"seq": &seq}); err != nil {
		return err
	}
	src, err := openSource(opt)
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := io.CopyN(sum, src, seq*int64(opt.block)); err != nil { // what was given away before is read, and summed, again
		return fmt.Errorf("read again what was compressed before: %w", err)
	}
	for again := opt.rereadable(); ; seq++ {
		if again {
			if err := out.safePoint(ctx); err != nil {
				return err
			}
		}
		msg := out.room()
		n, err := io.ReadFull(src, msg[headerBytes:headerBytes+opt.block])
		last := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !last {
			return err
		}
		if n == 0 && seq > 0 {
			return nil // an empty input is one empty block, because an empty file is no .zst
		}
		msg = msg[:headerBytes+n]
		if opt.verify {
			sum.Write(msg[headerBytes:])
		}
		header{seq: seq, raw: int64(n), total: src.total}.put(msg)
		if err := out.give(ctx, msg); err != nil || last {
			return err
		}
	}
}
