// Package release stores with the ordering that gives something away and no
// more: who sees the value sees all that was written before. A store of
// sync/atomic also waits until it has left the core, which for a message costs
// more than all the rest.
package release
