package control

import "github.com/mpiv/mpiv/internal/identity"

// What who shows a job to a user says to its head, over TLS, where the job outlives its
// head: the front. There is one at a time.

// A FromFront is what the front says. Exactly one field is set.
type FromFront struct {
	Attach *Attach     `json:",omitempty"` // the first
	Input  *FrontInput `json:",omitempty"`
	Signal *Signal     `json:",omitempty"` // to pass on
	Shown  *Shown      `json:",omitempty"`
	Alive  *Alive      `json:",omitempty"`
}

// A ToFront is what it is told. Exactly one field is set.
type ToFront struct {
	Attached *Attached `json:",omitempty"` // the first
	Text     *Text     `json:",omitempty"`
	Hole     *Hole     `json:",omitempty"`
	Taken    *Taken    `json:",omitempty"` // Bytes of its Input, or that nobody reads it
	Heeded   *Heeded   `json:",omitempty"`
	Voters   *Voters   `json:",omitempty"` // where to look for the next head
	Ended    *Ended    `json:",omitempty"`
	Alive    *Alive    `json:",omitempty"`
}

// Attach: show me the job.
type Attach struct {
	Viewer string // unlike that of any other; who comes again is the same
	Types  bool   // it would bring input, or has brought some
	Again  bool   // it has shown some of the job before
}

// Attached: here it is.
type Attached struct {
	Reads bool  // the job reads a standard input, which is to come from here
	Other bool  //   which another brings
	Input int64 // what has come of it so far, in bytes: it goes on from there
}

// FrontInput is what the job is to read.
type FrontInput struct {
	Data []byte `json:",omitempty"`
	End  bool   `json:",omitempty"`
}

// Signal is the N-th of a viewer, from 1 on. It is said again to the next head, unless it was Heeded.
type Signal struct{ Signal, N int }

// Heeded are the first N signals: they were passed on.
type Heeded struct{ N int }

// Text is what to show. A head that has taken over may say it again: what is of a
// process ends at a place in its output that only grows.
type Text struct {
	Stderr  bool  `json:",omitempty"`
	Process int   `json:",omitempty"`
	End     int64 `json:",omitempty"` // of the output of Process, in bytes. 0: it is the head's own
	Data    []byte
}

// Hole: some of what comes before the next Text was shown by others alone.
type Hole struct{}

// Shown gives back room for so many Texts.
type Shown struct{ N int }

// Ended: the job has, with this exit code.
type Ended struct{ Code int }

// A Pass is what lets a front in.
type Pass struct {
	Job         string
	Credentials identity.Credentials
	Voters      []Voter
	Silence     int64 // ns for which nothing may be heard
}
