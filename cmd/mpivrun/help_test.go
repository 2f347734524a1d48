package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command but those that agents are for has help, which begins no job.
func TestHelpOfEveryCommand(t *testing.T) {
	for _, command := range strings.Fields("ps top events explain contracts trace move drain cordon uncordon add attach abort version help") {
		require.NotEmpty(t, formsOf(command), command)
		for _, option := range []string{"--help", "-h"} {
			code, out, errs := result(t, mpivrun(t, command, option))
			require.Zero(t, code, errs)
			require.Contains(t, out, command)
			require.Empty(t, errs)
		}
	}
	require.Empty(t, formsOf("agent"))
}

func TestDocsHaveEveryCommandAndOption(t *testing.T) {
	text, err := os.ReadFile("../../docs/mpivrun.md")
	require.NoError(t, err)
	for _, f := range forms {
		require.True(t, strings.Contains(string(text), "    mpivrun "+f.words+"\n"), "mpivrun %s", f.words)
	}
	for _, o := range options {
		for _, name := range o.names {
			require.True(t, regexp.MustCompile(`(?m)^\| .*`+"`--?"+name+"[ `]").Match(text), "option %s", name)
		}
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	var b strings.Builder
	printForms(&b, forms)
	for line := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len(line), 100, line)
	}
}
