// Package brief shortens what is said of files, which may quote lines of any length, and
// what programs say.
package brief

import (
	"fmt"
	"strings"
)

// most is how long a sentence may be; of a longer one that much is left, at both ends.
const most = 1000

type short struct {
	text string
	err  error
}

func (s short) Error() string { return s.text }
func (s short) Unwrap() error { return s.err }

// Error is err, in short if it is long.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= most {
		return err
	}
	return short{Text(text, most), err}
}

// Text is text, of which n bytes are left, at both ends, if it is longer.
func Text(text string, n int) string {
	if len(text) <= n {
		return text
	}
	head, tail := strings.ToValidUTF8(text[:n/2], ""), strings.ToValidUTF8(text[len(text)-n/2:], "")
	return fmt.Sprintf("%s … (%d bytes) … %s", head, len(text)-len(head)-len(tail), tail)
}
