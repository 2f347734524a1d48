// Package barrier lets the rare side of a protocol pay for the fences of the
// frequent one.
//
// Two parties each store something and then look at what the other has stored:
// a sender stores its message and looks whether the receiver sleeps, the
// receiver stores that it sleeps and looks for messages. One of the two must see
// the other. But processors let a load overtake a store, so both need a fence,
// and a fence waits until every store before it has left the core: it is what a
// short message costs most. With a barrier only who falls asleep pays: it has
// the kernel put a fence into what every core is executing, at some
// microseconds. See membarrier(2).
package barrier

import "sync/atomic"

// Light is what the frequent side calls between its store and its load, in the
// threads of one process.
func Light() {
	if !havePrivate {
		fence.Add(1)
	}
}

// Heavy is what the rare side calls between its store and its load: it sees
// what the frequent side stored, or that side sees what it stored.
func Heavy() {
	if havePrivate {
		membarrier(privateExpedited)
	} else {
		fence.Add(1)
	}
}

var fence atomic.Uint32

// HeavyGlobal is Heavy among all processes that have called HaveGlobal. It must
// be true in all of them.
func HeavyGlobal() { membarrier(globalExpedited) }

// HaveGlobal tells whether there is HeavyGlobal here, and makes this process
// heed those of others.
func HaveGlobal() bool { return haveGlobal() }
