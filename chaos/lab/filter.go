//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A drop is a rule: packets from one address, and to another if that is set.
type drop struct{ from, to netip.Addr }

// Offsets of the addresses in an IPv4 header.
const fromOffset, toOffset = 12, 16

// setDrops replaces the drops of n, all at once. They are looked up where packets
// come in, or, at a router, where they pass: a sender never learns of a drop.
func setDrops(n *node, drops []drop) error {
	return n.ns.do(func() error {
		conf, err := nftables.New()
		if err != nil {
			return err
		}
		table := conf.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "partition"})
		conf.DelTable(table) // of before
		if len(drops) > 0 {
			conf.AddTable(table)
			chain := &nftables.Chain{Table: table, Name: "drops", Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}
			if n.router {
				chain.Hooknum, chain.Priority = nftables.ChainHookForward, nftables.ChainPriorityFilter
			}
			conf.AddChain(chain)
			for _, d := range drops {
				rule := is(d.from, fromOffset)
				if d.to.IsValid() {
					rule = append(rule, is(d.to, toOffset)...)
				}
				rule = append(rule, &expr.Verdict{Kind: expr.VerdictDrop})
				conf.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
			}
		}
		return flush(n, conf)
	})
}

func is(a netip.Addr, offset uint32) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// masquerade makes n forward packets, and gives those that leave through out n's
// own address there, and a port that nobody can guess: holes are not punched.
func masquerade(n *node, out string) error {
	return n.ns.do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			return err
		}
		conf, err := nftables.New()
		if err != nil {
			return err
		}
		table := conf.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "nat"})
		chain := conf.AddChain(&nftables.Chain{Table: table, Name: "out", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		name := make([]byte, unix.IFNAMSIZ)
		copy(name, out)
		conf.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
			&expr.Masq{FullyRandom: true},
		}})
		return flush(n, conf)
	})
}

func flush(n *node, conf *nftables.Conn) error {
	if err := conf.Flush(); err != nil {
		return fmt.Errorf("packet filter of %s (the kernel needs nf_tables with nat): %w (%w)", n.name, err, ErrUnavailable)
	}
	return nil
}
