//go:build !linux

package dirty

// A Book is none here.
type Book struct{}

// Open returns [ErrUnsupported].
func Open() (*Book, error) { return nil, ErrUnsupported }

// Watch is not called.
func (b *Book) Watch([]byte) error { return ErrUnsupported }

// Unwatch is not called.
func (b *Book) Unwatch([]byte) error { return ErrUnsupported }

// Written is not called.
func (b *Book) Written([]byte) ([]Range, error) { return nil, ErrUnsupported }

// Close is not called.
func (b *Book) Close() error { return nil }
