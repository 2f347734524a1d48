// Package exit says with which codes mpivrun ends.
package exit

// Codes that are not a rank's own.
const (
	Timeout       = 110
	NotExecutable = 126
	NotFound      = 127
	Signal        = 128 // plus the signal's number
)

// An Error is an error that has an exit code.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }
