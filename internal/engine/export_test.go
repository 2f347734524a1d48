package engine

// Dozing tells whether nothing of e runs until something happens.
func (e *Engine) Dozing() bool { return e.dozing.Load() }
