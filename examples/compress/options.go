package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/mpiv"
)

const usage = `usage: compress [options] [FILE | DIRECTORY | -]
       mpivrun -n N compress [options] [FILE | DIRECTORY | -]

Compresses to the format of zstd. Without a name, or with -, the input is standard
input. A directory becomes a tar stream: zstd -dc DIRECTORY.tar.zst | tar x

Rank 0 reads, the last rank writes, the ranks in between compress. Of two ranks
both compress. A single one does it all, on all cores. With mpivrun --spares ranks
of three and more outlive their processes, from files and to files.

  -o FILE             where to write; - is standard output. Default: the input's name
                      with .zst or .tar.zst after it; standard output for standard input
  -f                  replace FILE if it exists
  --level N           1 (fast) to 22 (small), as of zstd. Default: 3
  --block SIZE        input is cut into blocks of SIZE, each a frame of its own, such as
                      524kB or 1MiB. Default: 1MiB
  --verify            read FILE again and compare it with the input
  --json              print the summary as JSON on standard output
  -q, --quiet         print neither progress nor summary
  --baseline K        do without messages: K goroutines compress in the process of rank 0

Experiments:
  --iterations N      the input is N blocks of generated data; without -o the output is
                      thrown away
  --compressibility P compression of that data saves about P percent. Default: 60
  --seed S            other generated data. Default: 1
  --csv FILE          write when each block was written, and how long after the one before
  --compare           compress the input with messages and without, in turn, and print what
                      either takes. Output is thrown away. Without mpivrun, four ranks run
                      in this process
  --rounds N          how often. Default: 21
`

// options say what to do. They are the same on all ranks.
type options struct {
	input    string // "-": standard input
	output   string // "-": standard output; "": thrown away
	force    bool
	level    int
	block    int // bytes
	verify   bool
	json     bool
	quiet    bool
	baseline int // > 0: so many goroutines and no messages

	iterations      int // > 0: input is generated
	compressibility int
	seed            uint64
	csv             string
	compare         bool
	rounds          int

	state *mpiv.State // of the rank; nil: it lives and dies with its process

	window  int                     // blocks between reader and writer. Zero means: windowFor
	encoder func(rank int) encoder  // instead of zstd's, for tests
	source  func() (*source, error) // instead of input, for what was opened before
}

// windowFor is how many blocks may be between the reader and the writer: enough
// that the others go on for a while when one compressor is slow.
func (o options) windowFor(compressors int) int {
	if o.window > 0 {
		return o.window
	}
	return 8 * compressors
}

func (o options) inputName() string {
	switch {
	case o.iterations > 0:
		return fmt.Sprintf("generated data of %d %%", o.compressibility)
	case o.input == "-":
		return "standard input"
	}
	return o.input
}

// parseOptions reads a command line. Options may stand before and after the name.
func parseOptions(args []string) (options, error) {
	var o options
	block := byteSize(1 << 20)
	fs := flag.NewFlagSet("compress", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.StringVar(&o.output, "o", "", "")
	fs.BoolVar(&o.force, "f", false, "")
	fs.IntVar(&o.level, "level", 3, "")
	fs.Var(&block, "block", "")
	fs.BoolVar(&o.verify, "verify", false, "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.BoolVar(&o.quiet, "quiet", false, "")
	fs.BoolVar(&o.quiet, "q", false, "")
	fs.IntVar(&o.baseline, "baseline", 0, "")
	fs.IntVar(&o.iterations, "iterations", 0, "")
	fs.IntVar(&o.compressibility, "compressibility", 60, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.StringVar(&o.csv, "csv", "", "")
	fs.BoolVar(&o.compare, "compare", false, "")
	fs.IntVar(&o.rounds, "rounds", 21, "")

	var names []string
	for {
		if err := fs.Parse(args); err != nil {
			return o, err
		}
		if fs.NArg() == 0 {
			break
		}
		names, args = append(names, fs.Arg(0)), fs.Args()[1:]
	}
	o.block = int(block)
	if len(names) > 1 {
		return o, fmt.Errorf("compress takes one input, not %d (%s); put files into a directory, or pipe tar into it",
			len(names), strings.Join(names, ", "))
	}
	o.input = "-"
	if len(names) == 1 {
		o.input = names[0]
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return o.complete(given, len(names) > 0)
}

// complete checks the options and fills in what depends on others.
func (o options) complete(given map[string]bool, named bool) (options, error) {
	if o.compare && !named && !given["iterations"] {
		o.iterations = 100
		if !given["block"] {
			o.block = 524_000
		}
	}
	switch {
	case o.level < 1 || o.level > 22:
		return o, fmt.Errorf("--level %d: want 1 to 22", o.level)
	case o.block < 1 || o.block > 1<<30:
		return o, fmt.Errorf("--block %d: want 1B to 1GiB", o.block)
	case o.baseline < 0 || given["baseline"] && o.baseline == 0:
		return o, fmt.Errorf("--baseline %d: want at least one goroutine", o.baseline)
	case o.iterations < 0 || given["iterations"] && o.iterations == 0:
		return o, fmt.Errorf("--iterations %d: want at least one block", o.iterations)
	case o.iterations > math.MaxInt/o.block:
		return o, fmt.Errorf("--iterations %d: that is too much, of blocks of %d bytes", o.iterations, o.block)
	case o.iterations > 0 && named:
		return o, fmt.Errorf("--iterations makes its own input; leave out %s", o.input)
	case o.compressibility < 0 || o.compressibility > 100:
		return o, fmt.Errorf("--compressibility %d: want 0 to 100 percent", o.compressibility)
	case o.rounds < 1:
		return o, fmt.Errorf("--rounds %d: want at least one", o.rounds)
	case o.compare:
		if o.output != "" || o.verify || o.csv != "" || o.baseline > 0 {
			return o, errors.New("--compare throws its output away; leave out -o, --verify, --csv and --baseline")
		}
		if o.input == "-" && o.iterations == 0 {
			return o, errors.New("--compare reads its input many times; it cannot be standard input")
		}
		return o, nil
	}
	if o.output == "" && o.iterations == 0 {
		name, err := defaultOutput(o.input)
		if err != nil {
			return o, err
		}
		o.output = name
	}
	if err := o.apart(); err != nil {
		return o, err
	}
	if o.verify && (o.output == "" || o.output == "-") {
		return o, errors.New("--verify reads the output again; name a file with -o")
	}
	return o, nil
}

// apart fails if what is written would be the input, or each other.
func (o options) apart() error {
	if o.csv != "" && o.csv == o.output {
		return fmt.Errorf("--csv and -o are both %s", o.csv)
	}
	return errors.Join(within(o.output, o.input, "-o"), within(o.csv, o.input, "--csv"))
}

// within fails if the output of an option is in the input.
func within(output, input, option string) error {
	if input == "-" || output == "-" || output == "" {
		return nil
	}
	in, err := resolved(input)
	if err != nil {
		return err
	}
	out, err := resolved(output)
	if err != nil {
		return err
	}
	if out == in || strings.HasPrefix(out, strings.TrimSuffix(in, "/")+"/") {
		return fmt.Errorf("the output %s is in the input %s; name another with %s", output, input, option)
	}
	return nil
}

// resolved is path without links, as far as it exists.
func resolved(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // it is to be made
	if err != nil {
		return path, nil
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// defaultOutput is the name of the output for an input.
func defaultOutput(input string) (string, error) {
	if input == "-" {
		return "-", nil
	}
	fi, err := os.Stat(input)
	if err != nil || !fi.IsDir() {
		return input + ".zst", nil // if it cannot be opened, rank 0 says it
	}
	path, err := filepath.Abs(input)
	if err == nil && path == string(filepath.Separator) {
		err = errors.New("name the output with -o")
	}
	return path + ".tar.zst", err
}

// A byteSize is a flag for a number of bytes.
type byteSize int

var units = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"k", 1 << 10}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30},
	{"B", 1}, {"", 1},
}

func (s *byteSize) String() string { return strconv.Itoa(int(*s)) }

func (s *byteSize) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n >= 0 && n*u.bytes <= math.MaxInt32) {
			break
		}
		*s = byteSize(n * u.bytes)
		return nil
	}
	return errors.New("want a size such as 524kB or 1MiB")
}
