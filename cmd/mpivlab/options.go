//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/chaos/lab"
)

// parse parses the options of a lab, and the command behind them: without one, the
// user's shell.
func parse(args []string) (o lab.Options, words []string, err error) {
	names := []string{"X", "Y", "Z", "W", "A"}
	lan := lab.Network{Name: "lan", Rate: 100 * lab.Mbit}
	san := &member{network: lab.Network{Name: "san", Rate: lab.Gbit}}
	var others []member

	f := flag.NewFlagSet("mpivlab", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the error is returned, too
	f.Func("hosts", "", func(s string) error {
		names = strings.Split(s, ",")
		return nil
	})
	f.Func("lan", "", func(s string) (err error) {
		lan.Rate, err = lab.ParseRate(s)
		return err
	})
	f.Func("san", "", func(s string) error {
		if s == "none" {
			san = nil
			return nil
		}
		m, err := parseMember("san:" + s)
		san = &m
		return err
	})
	f.Func("network", "", func(s string) error {
		m, err := parseMember(s)
		others = append(others, m)
		return err
	})
	f.Func("nat", "", func(s string) error {
		m, err := parseMember(s)
		m.network.Behind = lan.Name
		others = append(others, m)
		return err
	})
	f.StringVar(&o.Congestion, "congestion", "", "")
	f.Func("queue", "", func(s string) error {
		o.Queue, err = strconv.Atoi(s)
		if err != nil || o.Queue < 1 {
			return errors.New("write a number of bytes, such as 1500000")
		}
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, nil, fmt.Errorf("%w; mpivlab --help shows the options", err)
	}
	words = f.Args()
	if len(words) == 0 {
		words = []string{"sh"}
		if shell := os.Getenv("SHELL"); shell != "" {
			words[0] = shell
		}
	}

	if san != nil && san.hosts == nil { // not said: Y and Z, if they are there
		for _, h := range []string{"Y", "Z"} {
			if slices.Contains(names, h) {
				san.hosts = append(san.hosts, h)
			}
		}
	}
	if san != nil && len(san.hosts) > 0 {
		others = slices.Insert(others, 0, *san)
	}
	o.Networks = []lab.Network{lan}
	on := map[string][]string{}
	hidden := map[string]bool{}
	for _, m := range others {
		o.Networks = append(o.Networks, m.network)
		for _, h := range m.hosts {
			if !slices.Contains(names, h) {
				return o, nil, fmt.Errorf("network %s: host %s is not among the hosts %s", m.network.Name, h, strings.Join(names, ","))
			}
			on[h] = append(on[h], m.network.Name)
			hidden[h] = hidden[h] || m.network.Behind != ""
		}
	}
	for _, name := range names {
		networks := on[name]
		if !hidden[name] {
			networks = slices.Insert(networks, 0, lan.Name)
		}
		o.Hosts = append(o.Hosts, lab.Host{Name: name, Networks: networks})
	}
	return o, words, nil
}

// A member is a network, and who is on it.
type member struct {
	network lab.Network
	hosts   []string
}

// parseMember parses "NAME:HOST,HOST" and "NAME:HOST,HOST:RATE".
func parseMember(s string) (m member, err error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[1] == "" {
		return m, errors.New("say which hosts, and perhaps the rate, such as Y,Z:1gbit")
	}
	m.network.Name, m.hosts = parts[0], strings.Split(parts[1], ",")
	if len(parts) == 3 {
		m.network.Rate, err = lab.ParseRate(parts[2])
	}
	return m, err
}
