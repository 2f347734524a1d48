//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// contenders is who shares nothing but the link with the others, in their order within
// a round: iperf3 and mpiv's transports, by mpivrun's options.
var contenders = []struct {
	name    string
	options []string
}{
	{"iperf3", nil},
	{"tcp", []string{"--transport", "tcp"}},
	{"tcp, insecure", []string{"--transport", "tcp", "--insecure"}},
	{"quic", []string{"--transport", "quic"}},
	{"libp2p", []string{"--transport", "libp2p"}},
}

const (
	shapedRate   = 100 * lab.Mbit
	shapedSize   = 1 << 20
	shapedWindow = 8
	shapedIters  = 7 // windows: 58.7 MB, 4.7 s at full rate
	shapedWarmup = 1
	shapedBar    = 98 // per cent of iperf3
)

func shaped(ctx context.Context, d *desk) error {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return errors.New("it needs iperf3 (apt-get install iperf3)")
	}
	l, err := lab.New(lab.Options{
		Hosts:    []lab.Host{{Name: "Y"}, {Name: "Z"}},
		Networks: []lab.Network{{Name: "lan", Rate: shapedRate}},
	})
	if err != nil {
		return err
	}
	defer l.Close()
	got := make([][]float64, len(contenders))
	var rows [][]string
	for round := range d.times(6) {
		for i, c := range contenders {
			goodput, err := d.goodput(ctx, l, c.options)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			got[i] = append(got[i], goodput)
			rows = append(rows, []string{fmt.Sprint(round), c.name, fmt.Sprintf("%.4f", goodput)})
		}
	}
	if err := d.writeCSV([]string{"round", "who", "goodput_MB_s"}, rows); err != nil {
		return err
	}
	iperf := median(got[0])
	d.note("iperf3: %.3f MB/s, median of %d", iperf, d.times(6))
	var names []string
	var ratios []float64
	for i, c := range contenders[1:] {
		m := median(got[i+1])
		names, ratios = append(names, c.name), append(ratios, 100*m/iperf)
		d.claim(claim{what: fmt.Sprintf("%s: %.3f MB/s, of iperf3", c.name, m), measured: 100 * m / iperf, unit: "%", bar: shapedBar, least: true})
	}
	return d.plotBars("goodput of a 100 Mbit/s link", "% of iperf3", names, ratios)
}

// goodput runs one contender, iperf3 if it has no options, and returns MB/s.
func (d *desk) goodput(ctx context.Context, l *lab.Lab, options []string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if options == nil {
		return iperf3(ctx, l)
	}
	var out strings.Builder
	j, err := d.start(ctx, l, map[string]int{"Y": 1, "Z": 1}, func(s string) { out.WriteString(s + "\n") }, options,
		filepath.Join(d.bin, "mpivbench"), "bw", "-s", strconv.Itoa(shapedSize), "-w", strconv.Itoa(shapedWindow),
		"-i", strconv.Itoa(shapedIters), "-x", strconv.Itoa(shapedWarmup))
	if err != nil {
		return 0, err
	}
	<-j.done
	j.kill()
	if j.err != nil {
		return 0, j.err
	}
	return parseBench(out.String())
}

// parseBench reads the one figure of mpivbench bw.
func parseBench(text string) (float64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] != "#" {
			return strconv.ParseFloat(f[1], 64)
		}
	}
	return 0, fmt.Errorf("mpivbench printed no figure: %q", text)
}

// iperf3 sends for as long as the others, after a second that is not counted.
func iperf3(ctx context.Context, l *lab.Lab) (float64, error) {
	to, err := l.Addr("Z", "lan")
	if err != nil {
		return 0, err
	}
	server := l.Command(ctx, "Z", "iperf3", "-s", "-1")
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = server.Process.Kill() // it has ended already if all went well
		_ = server.Wait()
	}()
	if err := listening(ctx, l, "Z", 5201); err != nil {
		return 0, err
	}
	var stderr bytes.Buffer
	client := l.Command(ctx, "Y", "iperf3", "-c", to.String(), "-J", "-O", "1", "-t", "5")
	client.Stderr = &stderr
	out, err := client.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s %s", err, out, stderr.String())
	}
	return parseIperf(out)
}

// parseIperf reads what iperf3 -J printed: MB/s that arrived.
func parseIperf(text []byte) (float64, error) {
	var r struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	if r.Error != "" || r.End.Received.Rate <= 0 {
		return 0, fmt.Errorf("iperf3 measured nothing: %s", r.Error)
	}
	return r.End.Received.Rate / 8e6, nil
}

// listening waits until something listens on a TCP port of a host.
func listening(ctx context.Context, l *lab.Lab, host string, port uint16) error {
	for {
		all, err := sockets(l, host)
		if err != nil {
			return err
		}
		for _, a := range all.tcp {
			if a.Port() == port {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens on port %d of %s: %w", port, host, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
