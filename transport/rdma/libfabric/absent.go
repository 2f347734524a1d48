//go:build !(ofi && cgo && linux)

package libfabric

import (
	"context"
	"errors"

	"github.com/mpiv/mpiv/transport/rdma"
)

const absent = "this program was built without libfabric: build with -tags ofi, cgo and libfabric-dev, on Linux"

// Available tells whether this program was built with libfabric, and if not, what
// that takes.
func Available() (ok bool, why string) { return false, absent }

// Listen refuses: this program was built without libfabric.
func Listen(context.Context, Options) (rdma.Domain, error) { return nil, errors.New(absent) }
