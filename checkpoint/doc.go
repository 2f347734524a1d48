// Package checkpoint is where snapshots and determinants of ranks rest: whole
// or not at all.
//
// A rank's process maps a file in the job's directory and copies its state into
// it ([Area]). What has been copied outlives the process, however it ends: the
// host's agent, or the rank's next process, opens the same file. A [Replica] on
// another host follows an Area by what changed from one snapshot to the next
// ([Area.Delta]). Between snapshots the outcomes of what the rank could not
// determine by itself go into [Determinants].
//
// The directory should be on tmpfs. Nothing here is ever synced: a file outlives
// processes, not the host's power. What must outlive the host is on another.
//
// One process at a time writes to a file, and a lock that ends with the process
// holds it to that; any number may read. Nobody shortens a file: who truncates
// one that is mapped kills whoever reads there next.
package checkpoint

import "errors"

var (
	ErrNone    = errors.New("there is no snapshot yet")
	ErrCorrupt = errors.New("the file was damaged, or is not of this kind")
	ErrFull    = errors.New("no space left: enlarge the file system of the job's directory, or hold less state")
	ErrClosed  = errors.New("closed")
	ErrNumber  = errors.New("the number of a snapshot must be larger than that of the last")
	ErrBusy    = errors.New("another process writes to this file: end it first")
	ErrGone    = errors.New("the snapshot is not there, or was overwritten: take the latest")
	ErrBase    = errors.New("the delta's base is not the latest snapshot here: send a delta from that, or from none")
	ErrDiffers = errors.New("the replica is not what was sent: send it from no base")
)
