//go:build linux

package launchtest

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// X and Y are behind address translations of their own. Their ranks meet at that of R. R does not reach them, and asks
// them to connect to it.
func TestHostsBehindAddressTranslations(t *testing.T) {
	s := newSiteOf(t, lab.Options{
		Hosts:    []lab.Host{{Name: "R", Networks: []string{"lan"}}, {Name: "X", Networks: []string{"home"}}, {Name: "Y", Networks: []string{"office"}}},
		Networks: []lab.Network{{Name: "lan"}, {Name: "home", Behind: "lan"}, {Name: "office", Behind: "lan"}},
	})
	meet := s.path("meet")
	build := exec.Command("go", "build", "-o", meet, "./testdata/meet")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, options := range [][]string{nil, {"--transport", "libp2p"}, {"--transport", "libp2p", "--insecure"}, {"--spares", "2"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) {
			r := s.run(slices.Concat(s.byLab(), []string{"--host", "R,X,Y"}, options, []string{meet})...)
			require.Zero(t, r.code, "%v", r)
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			slices.Sort(lines)
			require.Equal(t, []string{"0 has met [0 1 2]", "1 has met [0 1 2]", "2 has met [0 1 2]"}, lines)
		})
	}
	t.Run("what is no program of ours", func(t *testing.T) {
		r := s.run(slices.Concat(s.byLab(), []string{"--host", "R,X,Y", "hostname"})...)
		require.Zero(t, r.code, "%v", r)
		require.ElementsMatch(t, []string{"R", "X", "Y"}, strings.Fields(r.out))
	})
	for _, level := range []string{"moves", "none"} {
		t.Run("X is asked to connect to R, "+level, func(t *testing.T) {
			r := s.run(slices.Concat(s.byLab(), []string{"--host", "R,X", "--survive", level, s.program("ring")})...)
			require.Zero(t, r.code, "%v", r)
		})
	}
}
