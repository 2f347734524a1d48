package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
)

// BenchmarkSurvive is BenchmarkCost by what ranks survive, for 8 bytes. At level
// "crashes" a snapshot covers the log every so many messages.
func BenchmarkSurvive(b *testing.B) {
	const snapshotEvery = 20_000
	levels := []struct {
		name string
		cfg  engine.Config
	}{{"none", engine.Config{}}, {"moves", engine.Config{Keep: true}}, {"crashes", engine.Config{Keep: true, Replay: true}}}
	for _, network := range []string{"shm", "tcp"} {
		for _, level := range levels {
			b.Run(network+"/8B/"+level.name, func(b *testing.B) {
				w := newWorldOn(b, level.cfg, func(p int) transport.Endpoint { return networks[network](b, p) }, 1, 1)
				message := w.messages(b, 8)
				b.ReportAllocs()
				messages := 0
				for b.Loop() {
					message(0, 1)
					message(1, 0)
					if messages += 2; messages%snapshotEvery == 0 && level.cfg.Replay {
						for _, box := range w.boxes {
							_, covers, err := box.Capture()
							require.NoError(b, err)
							box.Covered(covers)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/message")
			})
		}
	}
}
