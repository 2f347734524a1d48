//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// claimsName is the page of what all trials have claimed whose results are in a directory.
const claimsName = "claims.md"

// writeClaims writes the claims of a trial as a table of Markdown, and what was said besides.
func (d *desk) writeClaims() error {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s: %s\n\n%s, %s", d.trial, d.about, time.Now().UTC().Format("2006-01-02 15:04"), machine())
	fmt.Fprintf(&b, ", seed %d\n", d.seed)
	if d.short {
		b.WriteString("In its short form.\n")
	}
	if len(d.claims) > 0 {
		b.WriteString("\n| claim | measured | paper | bar | |\n| --- | --- | --- | --- | --- |\n")
	}
	for _, c := range d.claims {
		fmt.Fprintf(&b, "%s\n", row(c))
	}
	if len(d.notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range d.notes {
		fmt.Fprintf(&b, "- %s\n", oneLine(n))
	}
	return os.WriteFile(filepath.Join(d.out, d.trial+".md"), []byte(b.String()), 0o644)
}

// row is a claim as a row of a table.
func row(c claim) string {
	paper := c.paper
	c.paper = ""
	return fmt.Sprintf("| %s | %s | %s | %s %s | %s |", cell(c.what), cell(c.got()), cell(paper), c.sign(), cell(c.figure(c.bar)), c.verdict())
}

// cell is text that does not end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(oneLine(text), "|", `\|`) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// gather writes what all trials have claimed that have results in the directory, in one page.
func (o options) gather() error {
	var b strings.Builder
	b.WriteString("# What was claimed, and measured\n\nWritten by `mpivtrials`. docs/experiments/migration.md and trials.md say what is done.\n")
	for _, t := range trials {
		text, err := os.ReadFile(filepath.Join(o.out, t.name+".md"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n%s", text)
	}
	return os.WriteFile(filepath.Join(o.out, claimsName), []byte(b.String()), 0o644)
}

// machine is what figures hang on: how many cores, and how many of them were wanted in the last minute, by all.
func machine() string {
	text := fmt.Sprintf("%d cores", runtime.NumCPU())
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		text += ", Linux " + unix.ByteSliceToString(u.Release[:])
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		text += ", load average " + strings.Fields(string(load))[0]
	}
	return text
}
