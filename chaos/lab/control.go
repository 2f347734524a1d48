//go:build linux

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A server answers other processes of the same user, over a Unix socket in a
// directory of mode 0700. Each connection is one question.
type server struct {
	lab    *Lab
	listen *net.UnixListener
	done   sync.WaitGroup
	slots  chan struct{} // bounds the questions under way; more wait to be accepted

	mu     sync.Mutex             // guards what follows
	silent map[*net.UnixConn]bool // have not asked yet; nil when the server is closed
}

// An answer is what a question gets, in as many packets as it takes, up to the end of
// the connection. With the answer to "enter" come descriptors of the host's network and
// name.
type answer struct {
	Text  string `json:"text,omitempty"`
	Error string `json:"error,omitempty"`
}

const (
	maxQuestion  = 1 << 16
	maxPacket    = 1 << 15 // fits the send buffer that a socket has, whatever the machine is tuned to
	maxAnswer    = 1 << 23 // of a lab of 100 000 links
	maxQuestions = 16
	askTimeout   = 5 * time.Second // for a question to arrive
	waitTimeout  = time.Minute     // for its answer
)

// Path is where the lab listens for [Control].
func (l *Lab) Path() string { return filepath.Join(l.dir, "socket") }

func serve(l *Lab) (*server, error) {
	// Packets: each question, and each answer, is one.
	listen, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: l.Path()})
	if err != nil {
		return nil, err
	}
	s := &server{lab: l, listen: listen, slots: make(chan struct{}, maxQuestions), silent: map[*net.UnixConn]bool{}}
	s.done.Go(s.loop)
	return s, nil
}

func (s *server) loop() {
	for {
		c, err := s.listen.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, say
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.slots <- struct{}{}
		s.done.Go(func() {
			defer func() { <-s.slots }()
			defer c.Close()
			s.handle(c)
		})
	}
}

func (s *server) close() {
	s.listen.Close()
	s.mu.Lock()
	for c := range s.silent {
		c.Close()
	}
	s.silent = nil
	s.mu.Unlock()
	s.done.Wait()
}

// read returns the question on c. It does not wait any longer once s is closed.
func (s *server) read(c *net.UnixConn) ([]byte, error) {
	s.mu.Lock()
	if s.silent == nil {
		s.mu.Unlock()
		return nil, net.ErrClosed
	}
	s.silent[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.silent, c)
		s.mu.Unlock()
	}()
	_ = c.SetDeadline(time.Now().Add(askTimeout))
	buf := make([]byte, maxQuestion)
	n, err := c.Read(buf)
	return buf[:n], err
}

func (s *server) handle(c *net.UnixConn) {
	if cred, err := peer(c); err != nil {
		refuse(c, fmt.Errorf("lab: who asks: %w", err))
		return
	} else if !trusted(cred.Uid) {
		return
	}
	question, err := s.read(c)
	if err != nil {
		refuse(c, fmt.Errorf("lab: no question: %w", err))
		return
	}
	var words []string
	var a answer
	var rights []byte
	if json.Unmarshal(question, &words) != nil || len(words) == 0 {
		a.Error = "lab: no question"
	} else if words[0] == "enter" && len(words) == 2 {
		var node *node
		if node, err = s.lab.node(words[1]); err == nil {
			a.Text = s.lab.cgroups.procs(node)
			rights = syscall.UnixRights(int(node.ns.net.Fd()), int(node.ns.uts.Fd()))
		}
	} else {
		a.Text, err = s.lab.do(words)
	}
	if err != nil {
		a = answer{Error: err.Error()}
	}
	if err := a.send(c, rights); err != nil && rights != nil {
		refuse(c, fmt.Errorf("lab: the namespaces cannot be handed over: %w", err))
	}
}

// refuse answers that err has come of the question, unless who has asked has gone.
func refuse(c *net.UnixConn, err error) { _ = answer{Error: err.Error()}.send(c, nil) }

// send sends a, with descriptors.
func (a answer) send(c *net.UnixConn, rights []byte) error {
	reply, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings always can be
	}
	_ = c.SetDeadline(time.Now().Add(askTimeout))
	for packet := range slices.Chunk(reply, maxPacket) {
		if _, _, err := c.WriteMsgUnix(packet, rights, nil); err != nil {
			return err
		}
		rights = nil
	}
	return nil
}

// trusted reports whether a process of user uid may ask. The directory lets in no
// other users; root of the machine, who goes where it likes, has in a user
// namespace the number of nobody.
func trusted(uid uint32) bool {
	const nobody = 65534
	return int(uid) == os.Geteuid() || uid == 0 || uid == nobody && inside()
}

// peer is the process at the other end of c.
func peer(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return cred, err
}

// Control asks the lab that listens at path to do something: words are what
// mpivlab takes on its command line, such as cut X lan. It returns what there is to
// print.
func Control(path string, words ...string) (string, error) {
	text, files, _, err := ask(path, words)
	for _, f := range files {
		f.Close()
	}
	return text, err
}

// ask returns the descriptors that came with the answer, too, and the number of
// the process that answered.
func ask(path string, words []string) (text string, files []*os.File, pid int, err error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return "", nil, 0, fmt.Errorf("no lab listens there: %w", err)
	}
	defer c.Close()
	cred, err := peer(c)
	if err != nil {
		return "", nil, 0, err
	}
	question, err := json.Marshal(words)
	if err != nil {
		return "", nil, 0, err
	}
	if len(question) > maxQuestion {
		return "", nil, 0, fmt.Errorf("the question has %d bytes; a lab takes %d", len(question), maxQuestion)
	}
	_ = c.SetDeadline(time.Now().Add(waitTimeout))
	if _, err := c.Write(question); err != nil {
		return "", nil, 0, err
	}
	reply, files, err := readAnswer(c)
	if err != nil {
		return "", files, 0, err
	}
	var a answer
	if err := json.Unmarshal(reply, &a); err != nil {
		return "", files, 0, fmt.Errorf("the lab's answer: %w", err)
	}
	if a.Error != "" {
		return "", files, 0, errors.New(strings.TrimPrefix(a.Error, "lab: "))
	}
	return a.Text, files, int(cred.Pid), nil
}

// readAnswer reads packets until there are no more, and takes the descriptors that
// come with them. The caller closes those, with an error too.
func readAnswer(c *net.UnixConn) (reply []byte, files []*os.File, err error) {
	buf, oob := make([]byte, maxPacket), make([]byte, syscall.CmsgSpace(2*4))
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
		if errors.Is(err, io.EOF) && len(reply) > 0 {
			return reply, files, nil
		}
		if err != nil {
			return nil, files, fmt.Errorf("the lab does not answer: %w", err)
		}
		if len(reply)+n > maxAnswer {
			return nil, files, fmt.Errorf("the lab's answer has more than %d bytes", maxAnswer)
		}
		reply = append(reply, buf[:n]...)
		messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, files, err
		}
		for _, m := range messages {
			fds, err := syscall.ParseUnixRights(&m)
			if err != nil {
				continue
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "namespace"))
			}
		}
	}
}

// Find returns the path of the lab that this process is in, or else of the only
// one of this user.
func Find() (string, error) {
	if path := os.Getenv(Variable); path != "" {
		return path, nil
	}
	var found []string
	for _, below := range []string{dirPrefix + "*/socket", dirPrefix + "*/" + dirPrefix + "*/socket"} {
		paths, _ := filepath.Glob(filepath.Join(os.TempDir(), below))
		for _, path := range paths {
			var st unix.Stat_t
			if unix.Stat(path, &st) == nil && int(st.Uid) == os.Geteuid() {
				found = append(found, path)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", errors.New("no lab of yours is running; mpivlab -- bash makes one and starts a shell in it")
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%d labs are running; say which with %s=PATH: %s", len(found), Variable, strings.Join(found, ", "))
}
