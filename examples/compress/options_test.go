package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseOptions(t *testing.T) {
	dir := t.TempDir()
	parse := func(line string) (options, error) { return parseOptions(strings.Fields(line)) }

	o, err := parse("big.log")
	require.NoError(t, err)
	require.Equal(t, options{input: "big.log", output: "big.log.zst", level: 3, block: 1 << 20, compressibility: 60, seed: 1, rounds: 21}, o)

	o, err = parse("--block 524kB big.log -f -o x.zst --level=19 --verify")
	require.NoError(t, err)
	require.Equal(t, options{input: "big.log", output: "x.zst", force: true, level: 19, block: 524_000, verify: true, compressibility: 60, seed: 1, rounds: 21}, o)

	o, err = parse("-- -strange-name")
	require.NoError(t, err)
	require.Equal(t, "-strange-name", o.input)

	for line, output := range map[string]string{
		"":                 "-",
		"-":                "-",
		"--iterations 3":   "",
		dir:                dir + ".tar.zst",
		dir + "/":          dir + ".tar.zst",
		"--compare":        "",
		"--compare x":      "",
		"-o /tmp/y.zst -q": "/tmp/y.zst",
	} {
		o, err := parse(line)
		require.NoError(t, err, line)
		require.Equal(t, output, o.output, line)
	}
	t.Chdir(dir)
	o, err = parse(".")
	require.NoError(t, err)
	wd, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, wd+".tar.zst", o.output, "the directory one is in goes beside it, not into it")
}

func TestBadOptions(t *testing.T) {
	for line, want := range map[string]string{
		"--colour":                         "-colour",
		"a b":                              "one input, not 2 (a, b)",
		"a --level 0":                      "want 1 to 22",
		"a --level 23":                     "want 1 to 22",
		"a --level x":                      "-level",
		"a --block 0":                      "want 1B to 1GiB",
		"a --block 12parsec":               "such as 524kB",
		"a --block -1MiB":                  "such as 524kB",
		"a --block NaN":                    "such as 524kB",
		"a --block 1e30":                   "such as 524kB",
		"a --baseline 0":                   "at least one",
		"--iterations 0":                   "at least one",
		"--iterations 5 a":                 "leave out a",
		"--compressibility 101":            "0 to 100",
		"/":                                "-o",
		"a -f -o ./a":                      "in the input",
		"dir -o dir/x.zst":                 "in the input",
		"a -f -o b --csv ./a":              "name another with --csv",
		"a -f -o b --csv b":                "are both b",
		"--iterations 9223372036854775807": "too much",
		"--verify":                         "-o",
		"--verify a -o -":                  "-o",
		"--compare -o x":                   "leave out",
		"--compare -":                      "standard input",
		"--compare --rounds 0":             "at least one",
		"--iterations 5 --verify ":         "-o",
	} {
		_, err := parseOptions(strings.Fields(line))
		require.ErrorContains(t, err, want, line)
	}
	_, err := parseOptions([]string{"a", "--help"})
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int{
		"1": 1, "100B": 100, "524kB": 524_000, "524KB": 524_000, "1MiB": 1 << 20, "1.5MiB": 3 << 19, "64K": 64 << 10,
		"2M": 2 << 20, "1 MB": 1e6, "1GiB": 1 << 30, "0": 0,
	} {
		var s byteSize
		require.NoError(t, s.Set(text))
		require.Equal(t, want, int(s), text)
	}
	for _, text := range []string{"", "MiB", "-1", "1TB", "1.2.3", "4GiB", "Inf"} {
		var s byteSize
		require.Error(t, s.Set(text), text)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 99_949: "99.9 kB", 524_000: "524 kB",
		999_999: "1.0 MB", 104_800_000: "105 MB", 3_200_000_000: "3.2 GB", 5_000_000_000_000: "5.00 TB"} {
		require.Equal(t, want, bytesText(n))
	}
}

// The output is not to take the place of the input, by whatever name.
func TestOutputIsNoInput(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	require.NoError(t, os.Mkdir(in, 0o755))
	file, link, there := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "there")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o644))
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, os.Symlink(in, there))
	for _, o := range []options{
		{input: file, output: file},
		{input: file, output: link},
		{input: link, output: file},
		{input: in, output: filepath.Join(in, "new")},
		{input: in, output: filepath.Join(there, "new")},
		{input: there, output: filepath.Join(in, "new")},
	} {
		require.ErrorContains(t, o.apart(), "is in the input", "%s to %s", o.input, o.output)
	}
	for _, o := range []options{
		{input: file, output: filepath.Join(dir, "new")},
		{input: in, output: filepath.Join(dir, "in.zst")},
		{input: "-", output: file},
	} {
		require.NoError(t, o.apart(), "%s to %s", o.input, o.output)
	}
}
