package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
)

// A walker says that its path to the next process goes over the SAN and delivers 1 MB/s. Told to
// avoid that, it goes over the LAN, with 10 MB/s, unless it is called stubborn.
func init() {
	for name, obeys := range map[string]bool{"walk": true, "stubborn": false} {
		members[name] = func(m *member) { walk(m, obeys) }
	}
}

func walk(m *member, obeys bool) {
	m.join()
	fmt.Println("ready")
	var avoids atomic.Bool
	go func() {
		const every = 100 * time.Millisecond
		for sent := uint64(0); ; {
			time.Sleep(every)
			if _, err := os.Stat(os.Getenv(envTrickle)); err == nil {
				m.finish()
				return
			}
			var slots sensors.Slots
			slots.Mark(time.Now(), time.Now().Add(every-sensors.SlotTime))
			r := control.PathReading{Peer: (m.process + 1) % len(m.start.Processes), Class: topology.SAN, Size: sensors.Large,
				Reading: path.Reading{Over: every, Busy: every, Slots: slots, Bytes: 100_000, Limited: true, RTT: time.Millisecond}}
			if avoids.Load() {
				r.Class, r.Bytes = topology.LAN, 1_000_000
			}
			sent += r.Bytes
			r.Sent = sent
			m.send(control.Message{Paths: &control.Paths{Links: []control.PathReading{r}}})
		}
	}()
	for {
		msg, err := m.conn.Receive()
		switch {
		case err != nil:
			os.Exit(9)
		case msg.Avoid != nil:
			fmt.Printf("process %d avoids %v of %d for %v\n", m.process, msg.Avoid.Class, msg.Avoid.Processes, msg.Avoid.For)
			avoids.Store(obeys && msg.Avoid.For > 0)
		case msg.Stop != nil:
			return
		}
	}
}

// walking is a job of three hosts on two networks, of which the faster is slow from b to c, and what ends it.
func walking(t *testing.T, how string) (a *Agent, out, errs *buffer, end func()) {
	t.Helper()
	j, out, errs := lossy(t, how, 3, 0, 0)
	for i := range j.Hosts {
		j.Hosts[i].Networks = []control.Network{{Class: topology.SAN, Address: "127.0.0.1"}, {Class: topology.LAN, Address: "127.0.0.1"}}
	}
	path := filepath.Join(j.Runtime, "end")
	j.Programs[0].Env = append(j.Programs[0].Env, envTrickle+"="+path)
	var err error
	j.Thresholds, err = sensors.ParseThresholds("b>c:8MB/s")
	require.NoError(t, err)
	a, err = Start(j)
	require.NoError(t, err)
	return a, out, errs, func() { require.NoError(t, os.WriteFile(path, nil, 0o600)) }
}

func TestAnotherNetworkIsUsed(t *testing.T) {
	a, out, errs, end := walking(t, "walk")
	errs.await(t, "use lan for b→c san: done in ", 1)
	errs.await(t, "predicted 8 MB/s\n", 1)
	end()
	require.Zero(t, a.Wait(), "%s", errs)
	var after, now, before float64
	_, line, _ := strings.Cut(errs.String(), walked(t, errs)+"measured ")
	_, err := fmt.Sscanf(line, "%g s later: %g MB/s where %g MB/s were seen", &after, &now, &before)
	require.NoError(t, err, "%s", errs)
	require.InEpsilon(t, 10*before, now, 0.3, "readings are of 20 ms: %s", line)
	require.Contains(t, out.String(), "process 1 avoids san of [2] for 30s\n")
	require.Contains(t, out.String(), "process 2 avoids san of [1] for 30s\n")
	require.NotContains(t, out.String(), "process 0 avoids", "it is on another host")
}

// What a job has measured when it ends is told, be it that it was too soon.
func TestARemedyIsMeasuredWhenTheJobEnds(t *testing.T) {
	a, _, errs, end := walking(t, "walk")
	errs.await(t, "use lan for b→c san: done in ", 1)
	end()
	require.Zero(t, a.Wait(), "%s", errs)
	require.Regexp(t, walked(t, errs)+`(nothing )?measured [0-9.]+ s later: `, errs.String())
}

// walked is how lines begin of the decision to use the other network. It need not be the
// first: while all hosts wait for cores nothing is blamed on the link.
func walked(t *testing.T, errs *buffer) string {
	t.Helper()
	found := regexp.MustCompile(`(decision \d+: )use lan for b→c san: done in `).FindStringSubmatch(errs.String())
	require.NotNil(t, found, "%s", errs)
	return found[1]
}

func TestAnotherNetworkIsNotUsedByAnybody(t *testing.T) {
	a, out, errs, end := walking(t, "stubborn")
	errs.await(t, "use lan for b→c san: undone in 2.", 1)
	out.await(t, "process 1 avoids san of [2] for 0s\n", 1)
	out.await(t, "process 2 avoids san of [1] for 0s\n", 1)
	end()
	require.Zero(t, a.Wait(), "%s", errs)
	require.Contains(t, errs.String(), "(0 of 1 pairs of processes were seen to use another network than san within 2s)")
	require.NotContains(t, errs.String(), "measured", "nothing was carried out")
}
