package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/shm"
	"github.com/mpiv/mpiv/transport/tcp"
)

// handIn is how a program gets a network that is not in each.
var handIn = map[string]string{
	"libp2p": ": mpiv.Main(run, libp2p.Network()), with import \"github.com/mpiv/mpiv/transport/libp2p\", would hand it in",
	"ofi":    ": docs/libfabric.md says how it gets one",
}

// usual is the networks between hosts that every program has, best first.
func usual() []transport.Network { return []transport.Network{tcp.Network(), quic.Network()} }

// listen opens this process's endpoints on the networks of the job, best first:
// those of one class before those of the next, and in the order of
// Options.Transports within it. Unless they are named there, what is for other
// hosts is not used within one.
func (p *Process) listen(dir string, w control.Welcome, extra []transport.Network) ([]fabric.Network, error) {
	known := slices.Concat(usual(), extra)
	allowed := w.Options.Transports
	named := len(allowed) > 0
	if !named {
		allowed = []string{"shm"}
		for _, n := range known {
			if !n.Named {
				allowed = append(allowed, n.Name)
			}
		}
	}
	sites := w.Networks
	if len(sites) == 0 {
		sites = []control.Network{{Class: topology.SameHost, Address: "127.0.0.1"}}
	}
	var between *tls.Config // hosts
	if w.Credentials != nil {
		id, err := w.Credentials.Open()
		if err != nil {
			return nil, err
		}
		p.identity, between = id, id.TLS()
	}
	for _, n := range known {
		if n.Relays {
			p.relayed = append(p.relayed, n.Name)
		}
	}
	var networks []fabric.Network
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})) // what a network went on without
	for _, name := range allowed {
		if name == "shm" {
			d, err := shm.Listen(filepath.Join(dir, fmt.Sprintf("p%d.sock", p.index)), shm.Options{})
			if err != nil {
				closeAll(networks)
				return nil, err
			}
			p.shared = d
			networks = append(networks, fabric.Network{Class: topology.SameHost, Endpoint: rdma.New(d)})
			continue
		}
		i := slices.IndexFunc(known, func(n transport.Network) bool { return n.Name == name })
		if i < 0 {
			closeAll(networks)
			return nil, fmt.Errorf("this program has no transport %q%s", name, handIn[name])
		}
		p.devices = p.devices || known[i].Device
		if short := known[i].Short; short > 0 && (p.short == 0 || short < p.short) {
			p.short = short
		}
		for _, s := range sites {
			site := transport.Site{Address: s.Address, Secret: [16]byte(w.Token), Log: log}
			if s.Class != topology.SameHost {
				site.TLS, site.Relays = between, relaysOf(name, w.Options.Relays)
			} else if !named && name != tcp.Name {
				continue
			}
			ep, err := known[i].Listen(context.Background(), site)
			if err != nil {
				closeAll(networks)
				return nil, err
			}
			networks = append(networks, fabric.Network{Class: s.Class, Endpoint: ep})
		}
	}
	slices.SortStableFunc(networks, func(a, b fabric.Network) int { return int(a.Class) - int(b.Class) })
	return networks, nil
}

// relaysOf is those of relays that are of a network.
func relaysOf(network string, relays []string) []string {
	return slices.DeleteFunc(slices.Clone(relays), func(r string) bool { return !strings.HasPrefix(r, network+":") })
}

func closeAll(networks []fabric.Network) {
	for _, n := range networks {
		n.Endpoint.Close()
	}
}
