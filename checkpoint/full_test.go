//go:build linux

package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const smallDir = "MPIV_CHECKPOINT_TEST_SMALL"

func TestAFullFileSystemIsAnError(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), smallDir+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	switch {
	case err == nil:
	case bytes.Contains(said.Bytes(), []byte("no mount")) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL):
		t.Skipf("user and mount namespaces are missing here: %v %s", err, said.Bytes())
	default:
		t.Fatalf("%v: %s", err, said.Bytes())
	}
}

// fillSmall does the test in a process with mounts of its own.
func fillSmall(dir string) error {
	const size = 8 << 20
	if err := unix.Mount("mpiv", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return fmt.Errorf("no mount: %w", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			panic(err)
		}
		return int64(st.Bfree) * st.Bsize
	}
	a, err := Create(filepath.Join(dir, "area"))
	if err != nil {
		return err
	}
	defer a.Close()
	state := func(n byte, size int) []byte { return bytes.Repeat([]byte{n}, size) }
	for n := byte(1); n <= 2; n++ {
		if err := save(a, uint64(n), state(n, 2<<20)); err != nil {
			return fmt.Errorf("save %d: %w", n, err)
		}
	}
	// A process that has saved here, and its successor, to whom all is new.
	for life := range 2 {
		before := free()
		if err := a.Begin(3, Part{Bytes: state(3, 7<<20)}); !errors.Is(err, ErrFull) {
			return fmt.Errorf("life %d: Begin of 7 MiB = %v, want ErrFull", life, err)
		}
		if got := free(); got != before {
			return fmt.Errorf("life %d: after ErrFull %d bytes are free, before %d", life, got, before)
		}
		for n := byte(1); n <= 2; n++ {
			snap, _, _, err := a.find(uint64(n))
			if err != nil || !bytes.Equal(snap.Parts[0], state(n, 2<<20)) {
				return fmt.Errorf("life %d: after ErrFull snapshot %d is not what was saved: %v", life, n, err)
			}
		}
		a.Close()
		if a, err = Open(filepath.Join(dir, "area")); err != nil {
			return err
		}
		defer a.Close()
	}
	snap, err := a.Latest()
	if err != nil || snap.Number != 2 || !bytes.Equal(snap.Parts[0], state(2, 2<<20)) {
		return fmt.Errorf("after ErrFull Latest = %d, %v, want 2", snap.Number, err)
	}
	if !a.Has(1) {
		return errors.New("a Begin that failed took the older snapshot")
	}
	if err := save(a, 3, state(3, 2<<20)); err != nil {
		return fmt.Errorf("save of what fits: %w", err)
	}

	d, err := CreateDeterminants(filepath.Join(dir, "determinants"))
	if err != nil {
		return err
	}
	defer d.Close()
	for err == nil {
		err = d.Append(determinantOf(d.Len()))
	}
	if !errors.Is(err, ErrFull) {
		return fmt.Errorf("Append = %v, want ErrFull", err)
	}
	n := d.Len()
	if n < leastRing {
		return fmt.Errorf("full after %d determinants", n)
	}
	if err := d.Truncate(n - 10); err != nil {
		return err
	}
	for range 1000 {
		if err := d.Append(determinantOf(d.Len())); err != nil {
			return fmt.Errorf("Append after Truncate: %w", err)
		}
	}
	for i, rec := range d.From(0) {
		if rec != determinantOf(i) {
			return fmt.Errorf("determinant %d = %v", i, rec)
		}
		n = i + 1
	}
	if n != d.Len() {
		return fmt.Errorf("From ends at %d of %d", n, d.Len())
	}
	_, err = Create(filepath.Join(dir, "other"))
	for i := 0; err == nil && i < 10000; i++ {
		_, err = Create(filepath.Join(dir, fmt.Sprint(i)))
	}
	if !errors.Is(err, ErrFull) && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("Create = %v, want ErrFull", err)
	}
	return nil
}
