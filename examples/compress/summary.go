package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// A summary is what was done, as the writer saw it.
type summary struct {
	Input           string          `json:"input"`
	Output          string          `json:"output,omitempty"`
	Blocks          int64           `json:"blocks"`
	BlocksByRank    map[int64]int64 `json:"blocks_by_rank"` // by who compressed them
	RawBytes        int64           `json:"raw_bytes"`
	CompressedBytes int64           `json:"compressed_bytes"`
	Ratio           float64         `json:"ratio"` // raw to compressed
	Seconds         float64         `json:"seconds"`
	BytesPerSecond  float64         `json:"bytes_per_second"` // of input
	Verified        bool            `json:"verified"`
	SHA256          string          `json:"sha256,omitempty"` // of the input, when it was verified
}

// end fills in what follows from the rest.
func (s *summary) end(took time.Duration) {
	s.Seconds = took.Seconds()
	s.Ratio = float64(s.RawBytes) / float64(s.CompressedBytes) // an empty input has a frame too
	s.BytesPerSecond = float64(s.RawBytes) / s.Seconds
}

// print prints s: as JSON to standard output, or as a line to standard error. If
// the output goes to standard output, both go to standard error.
func (s *summary) print(opt options) error {
	switch {
	case opt.json && opt.output == "-":
		return json.NewEncoder(os.Stderr).Encode(s)
	case opt.json:
		return json.NewEncoder(os.Stdout).Encode(s)
	case opt.quiet:
		return nil
	}
	return s.line(os.Stderr)
}

func (s *summary) line(w io.Writer) error {
	blocks := "blocks"
	if s.Blocks == 1 {
		blocks = "block"
	}
	text := fmt.Sprintf("%s: %s → %s (%s), %d %s in %.2f s, %s/s",
		s.Input, bytesText(s.RawBytes), bytesText(s.CompressedBytes), ratioText(s.RawBytes, s.CompressedBytes),
		s.Blocks, blocks, s.Seconds, bytesText(int64(s.BytesPerSecond)))
	if s.Verified {
		text += ", verified"
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// ratioText is what is left of raw.
func ratioText(raw, compressed int64) string {
	if raw == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(compressed)/float64(raw))
}

// bytesText is n for people.
func bytesText(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if f < 999.5 {
			if unit == "B" || f >= 100 {
				return fmt.Sprintf("%.0f %s", f, unit)
			}
			return fmt.Sprintf("%.1f %s", f, unit)
		}
		f /= 1000
	}
	return fmt.Sprintf("%.2f TB", f)
}
