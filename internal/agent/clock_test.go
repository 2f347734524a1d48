package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCompareClocks(t *testing.T) {
	const ms = time.Millisecond
	asked := time.Now()
	for _, x := range []struct {
		what            string
		told, heard     time.Duration // after asked, by the clock here
		behind, surely  time.Duration
		differs, within time.Duration
	}{
		{what: "the same, at once", told: 1 * ms, heard: 2 * ms, within: ms},
		{what: "the same, heard late", told: 1 * ms, heard: 10_000 * ms, behind: 4999 * ms, within: 5000 * ms},
		{what: "the same, told late", told: 9_999 * ms, heard: 10_000 * ms, behind: -4999 * ms, within: 5000 * ms},
		{what: "behind", told: -60_000 * ms, heard: 2 * ms, behind: 60_001 * ms, differs: 60_001 * ms, surely: 60_000 * ms, within: ms},
		{what: "ahead", told: 60_000 * ms, heard: 2 * ms, behind: -59_999 * ms, differs: -59_999 * ms, surely: 59_998 * ms, within: ms},
		{what: "ahead, heard late", told: 60_000 * ms, heard: 4000 * ms, behind: -58_000 * ms, differs: -58_000 * ms, surely: 56_000 * ms, within: 2000 * ms},
	} {
		c := compareClocks(asked, asked.Add(x.heard), asked.Add(x.told))
		require.Equal(t, clock{x.behind, x.within}, c, x.what)
		require.Equal(t, x.differs, c.differs(), x.what)
		require.Equal(t, x.surely, c.surely(), x.what)
	}
}
