// Package shm is the rdma provider for processes of one user on one Linux host.
//
// Two processes share a segment of memory. In each direction it holds, per lane,
// a ring of 64-byte slots with one writer and one reader, and a ring of bytes for
// bodies that do not fit a slot. The reader polls the word of the next slot and
// nothing else, so a small message is one cache line that changes its owner.
// A Unix socket joins the two: it carries the handshake, then the doorbell (a
// byte wakes a peer that sleeps), and its end tells that the peer is gone.
//
// Reads copy straight from the peer's memory with process_vm_readv. Two
// processes that both poll share the work of a long one: see transfer.
//
// The peer can write to the segment at any moment. So nothing in it is trusted:
// a length is checked after it was read once, positions are kept in private
// memory, and a peer that lies breaks its own connection.
package shm
