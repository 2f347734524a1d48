package engine

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mpiv/mpiv/topology"
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
	if b.names == nil {
		b.names = make(map[uint32]string)
	}
	b.names[context], b.names[context+1] = name, name
}

// ContextRanks tells for explanations that no others than ranks, which must not change, send messages
// with a context.
func (b *Box) ContextRanks(context uint32, ranks []topology.Rank) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.members == nil {
		b.members = make(map[uint32][]topology.Rank)
	}
	b.members[context] = ranks
}

// ContextRank is the place of r among those that ContextRanks told of a context; of others, r.
func (b *Box) ContextRank(context uint32, r topology.Rank) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.members[context], r); i >= 0 {
		return i
	}
	return int(r)
}

// ForgetContext takes the name away again, and what ContextRanks told.
func (b *Box) ForgetContext(context uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.names, context)
	delete(b.members, context)
	delete(b.names, context+1)
}

// Quoted is a name that a program gave, for a line that people read: as it is, or in quotes if
// there is something in it that would end the line, or act on a terminal.
func Quoted(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	return strconv.Quote(name)
}
