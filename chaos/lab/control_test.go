//go:build linux

package lab

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnswersMayBeLong(t *testing.T) {
	name := strings.Repeat("x", 1<<20)
	l := &Lab{dir: t.TempDir(), groups: [][]string{{name}, {"Y"}}}
	s, err := serve(l)
	require.NoError(t, err)
	defer s.close()
	text, err := Control(l.Path(), "show")
	require.NoError(t, err)
	require.Contains(t, text, "partition: "+name+" Y\n")

	_, err = Control(l.Path(), "no-such-word")
	require.ErrorContains(t, err, "nothing that a lab does")
}

func TestAnswersAreBounded(t *testing.T) {
	l := &Lab{dir: t.TempDir(), groups: [][]string{{strings.Repeat("x", maxAnswer)}}}
	s, err := serve(l)
	require.NoError(t, err)
	defer s.close()
	_, err = Control(l.Path(), "show")
	require.ErrorContains(t, err, "the lab's answer has more than")
}
