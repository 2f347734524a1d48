package engine

import (
	"maps"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ContextName is what NameContext called a context.
func (b *Box) ContextName(context uint32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.names[context]
}

// NameContext gives a context, and the one after it, a name for explanations.
func (b *Box) NameContext(context uint32, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := maps.Clone(b.names)
	if names == nil {
		names = make(map[uint32]string)
	}
	names[context], names[context+1] = name, name
	b.names = names
}

// Quoted is a name that a program gave, for a line that people read: as it is, or in quotes if
// there is something in it that would end the line, or act on a terminal.
func Quoted(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	return strconv.Quote(name)
}
