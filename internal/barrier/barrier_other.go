//go:build !linux

package barrier

const (
	globalExpedited  = 0
	privateExpedited = 0
	havePrivate      = false
)

func haveGlobal() bool { return false }

func membarrier(int) (ok bool) { return false }
