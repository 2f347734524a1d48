package engine

import "maps"

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
