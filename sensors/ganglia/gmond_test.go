package ganglia_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/sensors/ganglia"
	"github.com/mpiv/mpiv/sensors/ganglia/gmondtest"
)

// The real thing: what is reported to a gmond is in its XML.
func TestGmond(t *testing.T) {
	gmond := gmondtest.Start(t)
	want := []ganglia.Metric{
		{Name: "mpiv_X_Y", Value: 1.5e6, Units: "bytes/sec", Group: "mpiv", Host: "127.0.0.1:X"},
		{Name: "mpiv_Y_X", Value: -0.25, Units: "", Host: "127.0.0.2:Y"},
	}
	var got []ganglia.Metric
	require.Eventually(t, func() bool {
		r, err := ganglia.Dial(t.Context(), gmond.UDP) // a new one says again what the metrics are
		require.NoError(t, err)
		defer r.Close()
		for _, m := range want {
			if r.Report(time.Now(), m) != nil {
				return false // it does not listen yet
			}
		}
		got, err = gmond.Metrics(t)
		return err == nil && len(got) >= len(want)
	}, 15*time.Second, 50*time.Millisecond)
	want[0].Group = "" // Read leaves groups out
	for _, m := range want {
		require.Contains(t, got, m)
	}
}
