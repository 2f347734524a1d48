//go:build linux

package lab

import "errors"

// ForTest makes a lab that is closed at the end of the test t. It skips the test
// where no lab can be made, and says why.
func ForTest(t interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
	Error(args ...any)
	Cleanup(func())
}, o Options) *Lab {
	t.Helper()
	l, err := New(o)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
