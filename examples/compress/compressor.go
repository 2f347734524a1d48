package main

import (
	"context"

	"github.com/klauspost/compress/zstd"
)

// A compressorEnd is a compressor's connection to the others.
type compressorEnd interface {
	survivor
	// next is a block to compress, nil when there are no more. It is the
	// caller's until the next call.
	next(ctx context.Context) ([]byte, error)
	// room is space for a compressed block. It is given back with give.
	room(ctx context.Context) ([]byte, error)
	// give hands a compressed block to the writer.
	give(ctx context.Context, msg []byte) error
	// end tells the writer that this compressor is done.
	end(ctx context.Context) error
}

// An encoder appends the frame that src compresses to, to dst.
type encoder func(src, dst []byte) []byte

func newEncoder(opt options, rank int) (encoder, error) {
	if opt.encoder != nil {
		return opt.encoder(rank), nil
	}
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true),
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(opt.level)))
	if err != nil {
		return nil, err
	}
	return e.EncodeAll, nil
}

// compressBlocks compresses whatever blocks it is given.
func compressBlocks(ctx context.Context, opt options, rank int, c compressorEnd) error {
	encode, err := newEncoder(opt, rank)
	if err != nil {
		return err
	}
	if _, err := c.restore(ctx, nil); err != nil {
		return err
	}
	for {
		if err := c.safePoint(ctx); err != nil {
			return err
		}
		raw, err := c.next(ctx)
		if err != nil {
			return err
		}
		if raw == nil {
			return c.end(ctx)
		}
		out, err := c.room(ctx)
		if err != nil {
			return err
		}
		h := headerOf(raw)
		h.by = int64(rank)
		h.put(out)
		if err := c.give(ctx, encode(raw[headerBytes:], out[:headerBytes])); err != nil {
			return err
		}
	}
}
