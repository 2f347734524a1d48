package engine

import "maps"

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
