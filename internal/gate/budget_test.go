//go:build linux

package gate

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
)

func TestABudgetIsSpentAndComesBack(t *testing.T) {
	a, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	now := time.Unix(1_700_000_000, 0)
	b := newBudget()
	for i := range burst {
		require.False(t, b.charge(a, now), i)
	}
	require.True(t, b.charge(a, now), "one more")
	require.False(t, b.charge(a, now), "it is shut out already")
	require.False(t, b.charge(other, now))
	require.Equal(t, []netip.Addr{a}, b.shutPlaces())
	require.Equal(t, now.Add(shutFor), b.next())
	require.False(t, b.reopen(now.Add(shutFor-1)))
	now = now.Add(shutFor)
	require.True(t, b.reopen(now))
	require.Zero(t, b.next())
	for i := range perSecond {
		require.False(t, b.charge(a, now), i)
	}
	require.True(t, b.charge(a, now))
	require.True(t, b.expect(a), "a member came from there")
	require.False(t, b.expect(a))
	require.Empty(t, b.shut)
	for range 10 * burst {
		require.False(t, b.charge(a, now))
		require.False(t, b.charge(netip.MustParseAddr("127.0.0.1"), now))
	}
}

func TestABudgetIsBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	b := newBudget()
	for i := range 3 * accountsMost {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0a000000+uint32(i))
		spends := 1
		if i < 2*shutMost {
			spends = burst + 1
		}
		for range spends {
			b.charge(netip.AddrFrom4(a), now)
		}
	}
	require.Len(t, b.shut, shutMost)
	require.Len(t, b.accounts, accountsMost)
	now = now.Add(time.Second)
	require.False(t, b.charge(netip.MustParseAddr("10.1.0.0"), now))
	require.Len(t, b.accounts, 2*shutMost+1, "those that have all of their budget are forgotten, and no others")
}

func TestWhatHasABudget(t *testing.T) {
	for from, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "::ffff:10.1.2.3": "10.1.2.3", "2001:db8::7:1": "2001:db8::", "fe80::7%lo": "fe80::",
	} {
		require.Equal(t, want, place(netip.MustParseAddr(from)).String(), from)
	}
	require.False(t, place(netip.Addr{}).IsValid())
}

// packet is the IP header of what comes from an address.
func packet(from netip.Addr) []byte {
	if from.Is4() {
		a := from.As4()
		return append(append([]byte{0x45, 11: 0}, a[:]...), 10, 0, 0, 9)
	}
	a := from.As16()
	return append(append([]byte{0x60, 7: 0}, a[:]...), make([]byte, 16)...)
}

func TestFilterDropsThosePlacesOnly(t *testing.T) {
	var places []netip.Addr
	for i := range shutMost { // so many that jumps are long
		places = append(places, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), place(netip.AddrFrom16([16]byte{0x20, 1, 7: byte(i), 15: 3})))
	}
	vm, err := bpf.NewVM(program(0, places))
	require.NoError(t, err)
	for from, dropped := range map[string]bool{
		"10.0.1.0": true, "10.0.1.63": true, "10.0.1.64": false, "10.0.0.1": false, "2001::9": true, "2001:0:0:3f::1": true, "2001:0:0:40::1": false, "2002::": false,
	} {
		n, err := vm.Run(packet(netip.MustParseAddr(from)))
		require.NoError(t, err)
		require.Equal(t, dropped, n == 0, from)
	}
	vm, err = bpf.NewVM(program(0, places[:1])) // no IPv6 among them
	require.NoError(t, err)
	n, err := vm.Run(packet(netip.MustParseAddr("2001::9")))
	require.NoError(t, err)
	require.NotZero(t, n)
}

// TestABudgetIsTidiedOnceASecond: it takes a while, and those who come are many.
func TestABudgetIsTidiedOnceASecond(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	b := newBudget()
	for i := range accountsMost {
		b.charge(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now)
	}
	late := netip.MustParseAddr("10.1.0.0")
	b.charge(late, now) // none has all of its budget
	b.charge(late, now.Add(time.Second-1))
	require.Len(t, b.accounts, accountsMost)
	b.charge(late, now.Add(time.Second))
	require.Len(t, b.accounts, 1)
}
