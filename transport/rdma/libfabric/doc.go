// Package libfabric is the RDMA provider for networks that libfabric drives: the
// same code is for InfiniBand and RoCE ("verbs;ofi_rxm"), for the cloud's EFA
// ("efa"), and without such hardware for "shm" and "tcp;ofi_rxm". It is built
// with the tag ofi, cgo and libfabric's development files (Debian:
// libfabric-dev); otherwise [Available] says so and [Listen] refuses.
//
// How it is wired:
//
//   - A [Domain] is a process's presence: two reliable endpoints (FI_EP_RDM), one
//     for each lane with a completion queue, and one address vector.
//   - A queue pair is a peer in the address vector, and a TCP connection. On this
//     side channel the two prove that they are of one job (that they know the
//     secret, and TLS where there is a configuration) and tell each other their fabric
//     addresses; its end means that the peer is gone.
//   - Messages are sends into receives that were posted before. All queue pairs of
//     a domain share them; each message names its queue pair, and has a
//     number that only the peer was told. Who sends stops at so many messages that
//     the peer has not consumed.
//   - Reads and writes are the provider's own, from and to the program's memory.
//   - Memory that a peer may write to is asked back before it is deregistered.
//   - Progress is manual: whoever calls PollCQ reads the completion queues for all
//     queue pairs. While one is armed, a goroutine waits for the completion
//     queues' descriptors; where the provider has none (shm), it polls, ever less often.
//
// The data itself is not encrypted, and whoever can send to an endpoint reaches
// libfabric's own parsers: this network is for a SAN, where nobody else is.
package libfabric
