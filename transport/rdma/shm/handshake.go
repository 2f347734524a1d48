//go:build linux

package shm

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// The handshake is three frames: who connects sends its own with the segment's
// file, gets the other's, and answers with what it found out: whether it can
// read the other's memory. To refuse is to answer with a reason.
//
//	0  magic      8
//	8  size       8   of the segment
//	16 nonce      8   random bytes that lie, in the sender's memory, at
//	24 probe      8   this address
//	32 flags      1   1: the sender can read the peer's memory. 2: refused.
//	                  4: it issues barriers, and minds those of others
//	33 length     1   of the text
//	34 text     110   the sender's address, or why it refuses
const (
	frameLen     = 144
	textLen      = frameLen - 34
	magic        = "mpivshm2"
	flagReads    = 1
	flagRefused  = 2
	flagBarriers = 4
)

type frame struct {
	size, probe uint64
	nonce       [8]byte
	flags       byte
	text        string
}

func (f frame) bytes() []byte {
	b := make([]byte, frameLen)
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], f.size)
	copy(b[16:], f.nonce[:])
	binary.LittleEndian.PutUint64(b[24:], f.probe)
	b[32] = f.flags
	b[33] = byte(copy(b[34:], f.text))
	return b
}

func parseFrame(b []byte) (f frame, err error) {
	if len(b) != frameLen || !bytes.HasPrefix(b, []byte(magic)) || int(b[33]) > textLen {
		return f, errors.New("it does not speak this protocol")
	}
	f.size = binary.LittleEndian.Uint64(b[8:])
	copy(f.nonce[:], b[16:])
	f.probe = binary.LittleEndian.Uint64(b[24:])
	f.flags = b[32]
	f.text = string(b[34 : 34+int(b[33])])
	return f, nil
}

// own is this side's frame. The nonce must stay where it is until the handshake
// ends, so it is part of q.
func (d *Domain) own(q *QueuePair) frame {
	rand.Read(q.nonce[:])
	f := frame{
		size: uint64(segmentBytes), nonce: q.nonce, text: d.path,
		probe: uint64(uintptr(unsafe.Pointer(&q.nonce))),
	}
	if d.barriers {
		f.flags = flagBarriers
	}
	return f
}

// learn takes what the peer's first frame f says about it. The flags are for
// the answer.
func (d *Domain) learn(q *QueuePair, f frame) (flags byte) {
	q.fences = !d.barriers || f.flags&flagBarriers == 0
	q.reads = !d.opt.NoReads && q.memory.holds(f.nonce, f.probe)
	if q.reads {
		return flagReads
	}
	return 0
}

// connect is the handshake of who dials.
func (d *Domain) connect(sock *net.UnixConn) (*QueuePair, error) {
	pid, err := peerProcess(sock)
	if err != nil {
		return nil, err
	}
	seg, file, err := newSegment()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	q, err := newQueuePair(d, seg, 0, sock)
	if err != nil {
		return nil, err
	}
	hello := d.own(q)
	if _, _, err := sock.WriteMsgUnix(hello.bytes(), unix.UnixRights(int(file.Fd())), nil); err != nil {
		return nil, err
	}
	b := make([]byte, frameLen)
	if _, err := io.ReadFull(sock, b); err != nil {
		return nil, fmt.Errorf("it hung up: %w", err)
	}
	reply, err := parseFrame(b)
	if err != nil {
		return nil, err
	}
	if reply.flags&flagRefused != 0 {
		return nil, fmt.Errorf("refused: %s", reply.text)
	}
	q.memory.pid = pid
	q.isRead = !d.opt.NoReads && reply.flags&flagReads != 0
	hello.flags |= d.learn(q, reply)
	if _, err := sock.Write(hello.bytes()); err != nil {
		return nil, err
	}
	return q, nil
}

// accept is the handshake of who is dialed.
func (d *Domain) accept(sock *net.UnixConn) (*QueuePair, error) {
	pid, err := peerProcess(sock)
	if err != nil {
		return nil, refuse(sock, err)
	}
	hello, file, err := readHello(sock)
	if err != nil {
		return nil, refuse(sock, err)
	}
	defer file.Close()
	seg, err := mapSegment(file)
	if err != nil {
		return nil, refuse(sock, err)
	}
	q, err := newQueuePair(d, seg, 1, sock)
	if err != nil {
		return nil, err
	}
	q.memory.pid = pid
	q.peer = transport.Addr(network + hello.text)
	reply := d.own(q)
	reply.flags |= d.learn(q, hello)
	if _, err := sock.Write(reply.bytes()); err != nil {
		return nil, err
	}
	b := make([]byte, frameLen)
	if _, err := io.ReadFull(sock, b); err != nil {
		return nil, err
	}
	last, err := parseFrame(b)
	if err != nil {
		return nil, err
	}
	q.isRead = !d.opt.NoReads && last.flags&flagReads != 0
	return q, nil
}

// readHello reads the first frame and the segment's file.
func readHello(sock *net.UnixConn) (f frame, file *os.File, err error) {
	b := make([]byte, frameLen)
	oob := make([]byte, unix.CmsgSpace(4)) // the kernel drops further files
	n, oobn, _, _, err := sock.ReadMsgUnix(b, oob)
	if err != nil {
		return f, nil, err
	}
	control, _ := unix.ParseSocketControlMessage(oob[:oobn])
	for _, c := range control {
		fds, _ := unix.ParseUnixRights(&c)
		for _, fd := range fds {
			if file != nil {
				unix.Close(fd)
				continue
			}
			file = os.NewFile(uintptr(fd), "mpiv segment")
		}
	}
	f, err = parseFrame(b[:n])
	switch {
	case err != nil:
	case file == nil:
		err = errors.New("it sent no shared memory")
	case f.size != uint64(segmentBytes):
		err = fmt.Errorf("its segment has %d bytes, ours %d: use one version of the program", f.size, segmentBytes)
	default:
		return f, file, nil
	}
	if file != nil {
		file.Close()
	}
	return f, nil, err
}

// peerProcess is the process at the other end, if it is of the same user.
func peerProcess(sock *net.UnixConn) (pid int, err error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(cerr, err); err != nil {
		return 0, fmt.Errorf("ask who the peer is: %w", err)
	}
	if err := sameUser(cred.Uid, uint32(os.Geteuid())); err != nil {
		return 0, fmt.Errorf("process %d: %w", cred.Pid, err)
	}
	return int(cred.Pid), nil
}

func sameUser(theirs, ours uint32) error {
	if theirs != ours {
		return fmt.Errorf("user %d is not user %d, whose processes alone may join", theirs, ours)
	}
	return nil
}

// refuse tells the peer why, if it listens, and returns why.
func refuse(sock *net.UnixConn, why error) error {
	sock.Write(frame{flags: flagRefused, text: why.Error()}.bytes())
	return why
}
