package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// TestMain lets a test start this binary as the program itself.
func TestMain(m *testing.M) {
	if os.Getenv("COMPRESS_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// compressWith runs a job of size ranks in this process.
func compressWith(ctx context.Context, size int, opt options) (*summary, error) {
	var mu sync.Mutex
	var sum *summary
	opt.quiet = true
	err := mpiv.Run(ctx, size, mpiv.Options{Check: true}, func(ctx context.Context, world *mpiv.Comm) error {
		s, err := compress(ctx, world, opt)
		if s != nil {
			mu.Lock()
			defer mu.Unlock()
			sum = s
		}
		return err
	})
	return sum, err
}

// fileOptions are for input in a new directory, in blocks of 4 KiB.
func fileOptions(t *testing.T, input []byte) options {
	t.Helper()
	name := filepath.Join(t.TempDir(), "input")
	require.NoError(t, os.WriteFile(name, input, 0o644))
	return options{input: name, output: name + ".zst", level: 1, block: 4 << 10, verify: true}
}

// text is n bytes, at most 512 KiB, that compress somewhat.
func text(n int) []byte { return bytes.Clone(someText()[:n]) }

var someText = sync.OnceValue(func() []byte {
	b := make([]byte, 512<<10)
	io.ReadFull(newGenerator(7, 50, int64(len(b))), b)
	return b
})

func decompress(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	d, err := zstd.NewReader(f)
	require.NoError(t, err)
	defer d.Close()
	got, err := io.ReadAll(d)
	require.NoError(t, err)
	return got
}

// onlyFiles fails if there is anything else in the directory of opt's input.
func onlyFiles(t *testing.T, opt options, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(opt.input))
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}

func TestWhatIsCompressedDecompresses(t *testing.T) {
	const block = 4 << 10
	for _, ranks := range []int{1, 2, 3, 4, 5, 9} {
		for _, n := range []int{0, 1, block - 1, block, block + 1, 2 * block, 50*block + 7} {
			t.Run(fmt.Sprintf("%d bytes by %d ranks", n, ranks), func(t *testing.T) {
				input := text(n)
				opt := fileOptions(t, input)
				sum, err := compressWith(t.Context(), ranks, opt)
				require.NoError(t, err)
				require.True(t, bytes.Equal(decompress(t, opt.output), input), "the output decompresses to something else")
				require.EqualValues(t, n, sum.RawBytes)
				require.EqualValues(t, max(1, (n+block-1)/block), sum.Blocks)
				require.True(t, sum.Verified)
				onlyFiles(t, opt, "input", "input.zst")
			})
		}
	}
}

func TestZstdOpensIt(t *testing.T) {
	zstdPath, err := exec.LookPath("zstd")
	if err != nil {
		t.Skip("zstd is not installed: apt-get install zstd")
	}
	for _, n := range []int{0, 1, 4096, 300_001} {
		for _, ranks := range []int{1, 4} {
			input := text(n)
			opt := fileOptions(t, input)
			_, err := compressWith(t.Context(), ranks, opt)
			require.NoError(t, err)
			got, err := exec.Command(zstdPath, "-dc", opt.output).Output()
			require.NoError(t, err)
			require.True(t, bytes.Equal(got, input), "zstd -d of %d bytes by %d ranks gives something else", n, ranks)
		}
	}
}

func TestBytesDoNotDependOnTheRanks(t *testing.T) {
	opt := fileOptions(t, text(100_000))
	opt.force = true
	var want []byte
	for ranks := 1; ranks <= 9; ranks++ {
		_, err := compressWith(t.Context(), ranks, opt)
		require.NoError(t, err)
		got, err := os.ReadFile(opt.output)
		require.NoError(t, err)
		if ranks == 1 {
			want = got
		}
		require.True(t, bytes.Equal(got, want), "%d ranks write something else than one", ranks)
	}
}

func TestBaselineUsesNoOtherRank(t *testing.T) {
	opt := fileOptions(t, text(100_000))
	opt.baseline = 3
	sum, err := compressWith(t.Context(), 4, opt)
	require.NoError(t, err)
	require.EqualValues(t, 25, sum.Blocks)
	for by := range sum.BlocksByRank {
		require.Less(t, by, int64(3))
	}
}

// numbered is n blocks that begin with their number.
func numbered(n, block int) []byte {
	input := text(n * block)
	for i := range n {
		input[i*block] = byte(i)
	}
	return input
}

// watched is zstd, and tells before each block which one it is.
func watched(before func(rank int, block byte)) func(rank int) encoder {
	return func(rank int) encoder {
		encode, err := newEncoder(options{level: 1}, rank)
		if err != nil {
			panic(err)
		}
		return func(src, dst []byte) []byte {
			before(rank, src[0])
			return encode(src, dst)
		}
	}
}

// soon is a context for what hangs when it is wrong.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestASlowRankHoldsUpNoOther(t *testing.T) {
	const blocks, slowRank, others = 60, 2, 30
	input := numbered(blocks, 4<<10)
	opt := fileOptions(t, input)
	opt.window = others + 10
	ctx := soon(t)

	// The slow rank takes for its first block as long as the two others for thirty, which begin when it has it.
	var done atomic.Int32
	begun, enough := make(chan struct{}), make(chan struct{})
	begins := sync.OnceFunc(func() { close(begun) })
	opt.encoder = watched(func(rank int, _ byte) {
		if rank != slowRank {
			select {
			case <-begun:
			case <-ctx.Done():
			}
			if done.Add(1) == others {
				close(enough)
			}
			return
		}
		begins()
		select {
		case <-enough:
		case <-ctx.Done():
			t.Errorf("the others did %d blocks while rank %d was at one, want %d", done.Load(), slowRank, others)
		}
	})
	sum, err := compressWith(ctx, 5, opt)
	require.NoError(t, err)
	require.True(t, bytes.Equal(decompress(t, opt.output), input), "blocks that overtook others are not in order")
	require.Positive(t, sum.BlocksByRank[slowRank], "the slow rank had no work: nothing was tested")
}

func TestBlocksInFlightAreBounded(t *testing.T) {
	const window = 7
	for _, ranks := range []int{1, 2, 5} {
		opt := fileOptions(t, numbered(60, 4<<10))
		opt.window = window
		if ranks == 1 {
			opt.baseline = 3
		}
		ctx := soon(t)
		var reads atomic.Int32
		full := make(chan struct{}) // the window is, and the reader has one block more in hand
		opt.source = func() (*source, error) {
			src, err := openSource(options{input: opt.input})
			if err != nil {
				return nil, err
			}
			return &source{readerFunc(func(p []byte) (int, error) {
				if reads.Add(1) == window+1 {
					close(full)
				}
				return src.Read(p)
			}), 0, src.Close}, nil
		}
		opt.encoder = watched(func(_ int, block byte) {
			if block != 0 {
				return
			}
			select { // until block 0 is done none is written
			case <-full:
			case <-ctx.Done():
				t.Errorf("%d ranks: the reader read %d blocks, want %d", ranks, reads.Load(), window+1)
			}
			time.Sleep(20 * time.Millisecond)
			if n := reads.Load(); n != window+1 {
				t.Errorf("%d ranks: the reader read %d blocks while block 0 was not written, want %d", ranks, n, window+1)
			}
		})
		sum, err := compressWith(ctx, ranks, opt)
		require.NoError(t, err)
		require.EqualValues(t, 60, sum.Blocks)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestVerifyFindsWhatWasCompressedWrongly(t *testing.T) {
	for name, corrupt := range map[string]func(encode encoder, src, dst []byte) []byte{
		"a bit is wrong": func(encode encoder, src, dst []byte) []byte {
			out := encode(src, dst)
			out[len(out)/2] ^= 4
			return out
		},
		"another block": func(encode encoder, src, dst []byte) []byte {
			other := bytes.Clone(src)
			other[17] ^= 1
			return encode(other, dst)
		},
		"the end is missing": func(encode encoder, src, dst []byte) []byte {
			out := encode(src, dst)
			return out[:len(out)-1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			opt := fileOptions(t, numbered(10, 4<<10))
			opt.encoder = func(rank int) encoder {
				encode, _ := newEncoder(options{level: 1}, rank)
				return func(src, dst []byte) []byte {
					if src[0] == 9 {
						return corrupt(encode, src, dst)
					}
					return encode(src, dst)
				}
			}
			sum, err := compressWith(t.Context(), 4, opt)
			require.ErrorContains(t, err, "verify "+opt.output)
			require.Nil(t, sum)
			onlyFiles(t, opt, "input")
		})
	}
}

func TestVerifyFindsWhatWasWrittenWrongly(t *testing.T) {
	opt := fileOptions(t, text(20_000))
	_, err := compressWith(t.Context(), 1, opt)
	require.NoError(t, err)
	good, err := os.ReadFile(opt.output)
	require.NoError(t, err)
	want := sumOf(t, opt.input)
	require.NoError(t, verifyFrames(bytes.NewReader(good), want))
	for at := 100; at < len(good); at += 997 {
		bad := bytes.Clone(good)
		bad[at] ^= 0x10
		require.Error(t, verifyFrames(bytes.NewReader(bad), want), "byte %d is wrong", at)
		require.Error(t, verifyFrames(bytes.NewReader(good[:at]), want), "cut after %d bytes", at)
	}
	require.Error(t, verifyFrames(bytes.NewReader(append(good, good...)), want), "twice the same")
}

func TestGeneratedInput(t *testing.T) {
	for _, percent := range []int{0, 30, 60, 90} {
		opt := options{iterations: 2, block: 524_000, compressibility: percent, seed: 3, level: 3}
		sum, err := compressWith(t.Context(), 3, opt)
		require.NoError(t, err)
		require.EqualValues(t, 2, sum.Blocks)
		saved := 100 - 100/sum.Ratio
		require.InDelta(t, percent, saved, 3, "percent saved")
	}
	a, b, other := make([]byte, 100_000), make([]byte, 100_000), make([]byte, 100_000)
	io.ReadFull(newGenerator(1, 60, 100_000), a)
	io.ReadFull(newGenerator(1, 60, 100_000), b)
	io.ReadFull(newGenerator(2, 60, 100_000), other)
	require.True(t, bytes.Equal(a, b))
	require.False(t, bytes.Equal(a, other))
}

func TestCancelLeavesNothing(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		opt := fileOptions(t, text(1))
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		opt.source = func() (*source, error) {
			endless := readerFunc(func(p []byte) (int, error) {
				if n++; n == 100 {
					cancel()
				}
				return len(p), nil
			})
			return &source{endless, 0, func() error { return nil }}, nil
		}
		_, err := compressWith(ctx, ranks, opt)
		require.ErrorIs(t, err, context.Canceled)
		onlyFiles(t, opt, "input")
	}
}

func TestFailuresNameTheirCauseOnce(t *testing.T) {
	errSource := errors.New("the disk is gone")
	cases := map[string]struct {
		spoil func(t *testing.T, opt *options)
		want  string
	}{
		"input is not there": {func(t *testing.T, opt *options) { opt.input += "-not" }, "input-not: no such file"},
		"input breaks off": {func(t *testing.T, opt *options) {
			data := bytes.NewReader(make([]byte, 100_000))
			opt.source = func() (*source, error) {
				return &source{io.MultiReader(data, readerFunc(func([]byte) (int, error) { return 0, errSource })), 0, func() error { return nil }}, nil
			}
		}, errSource.Error()},
		"output directory is not there": {func(t *testing.T, opt *options) { opt.output = opt.input + "/x/y" }, "not a directory"},
		"output is a directory":         {func(t *testing.T, opt *options) { opt.output = filepath.Dir(opt.input) }, "is a directory"},
		"output exists":                 {func(t *testing.T, opt *options) { opt.output = opt.input }, "exists already; -f"},
		"disk is full":                  {func(t *testing.T, opt *options) { opt.output = "/dev/full"; opt.verify = false }, "no space left"},
		"csv cannot be written":         {func(t *testing.T, opt *options) { opt.csv = "/dev/full" }, "no space left"},
	}
	for name, c := range cases {
		for _, ranks := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s, %d ranks", name, ranks), func(t *testing.T) {
				opt := fileOptions(t, text(300_000))
				c.spoil(t, &opt)
				_, err := compressWith(t.Context(), ranks, opt)
				require.ErrorContains(t, err, c.want)
				require.NotContains(t, err.Error(), "canceled", "other ranks were torn down")
				require.NotContains(t, err.Error(), "\n", "more than one rank complains")
				opt.input = filepath.Join(filepath.Dir(opt.input), "input")
				onlyFiles(t, opt, "input")
			})
		}
	}
}

func TestForceReplaces(t *testing.T) {
	input := text(10_000)
	opt := fileOptions(t, input)
	require.NoError(t, os.WriteFile(opt.output, []byte("old"), 0o644))
	_, err := compressWith(t.Context(), 3, opt)
	require.ErrorContains(t, err, "exists already")
	kept, err := os.ReadFile(opt.output)
	require.NoError(t, err)
	require.Equal(t, "old", string(kept))

	opt.force = true
	_, err = compressWith(t.Context(), 3, opt)
	require.NoError(t, err)
	require.True(t, bytes.Equal(decompress(t, opt.output), input))
}
