//go:build !linux

package gate

import (
	"errors"
	"net/netip"
)

func shutOutQUIC(int, []netip.Addr) error { return errors.ErrUnsupported }
