package flood

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoApache means that Apache or its ab is not installed.
var ErrNoApache = errors.New("this needs Apache and its ab (Debian: apache2-bin and apache2-utils)")

// modules is where distributions have Apache's modules.
var modules = []string{"/usr/lib/apache2/modules", "/usr/lib64/httpd/modules", "/usr/lib/httpd/modules"}

const (
	apacheStarts = 10 * time.Second
	apacheEnds   = 5 * time.Second
)

// ServeApache is [Serve] by Apache with its event module, on an address. It calls ready
// when that can be connected to.
func ServeApache(ctx context.Context, at netip.AddrPort, bytes int64, ready func()) error {
	program := installed("apache2", "httpd")
	i := slices.IndexFunc(modules, func(dir string) bool { return exists(filepath.Join(dir, "mod_mpm_event.so")) })
	if program == "" || i < 0 {
		return ErrNoApache
	}
	f, err := file(bytes) // for its bounds
	if err != nil {
		return err
	}
	f.Close()
	dir, err := os.MkdirTemp("", "mpiv-flood-")
	if err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	defer os.RemoveAll(dir)
	conf := fmt.Sprintf(`ServerRoot %[1]s
ServerName flood
Listen %[2]v
PidFile %[1]s/pid
ErrorLog /dev/stderr
LogLevel crit
LoadModule mpm_event_module %[3]s/mod_mpm_event.so
LoadModule authz_core_module %[3]s/mod_authz_core.so
ServerLimit 16
ThreadsPerChild 25
MaxRequestWorkers 400
EnableSendfile On
DocumentRoot %[1]s
`, dir, at, modules[i])
	if os.Geteuid() == 0 {
		conf += "User nobody\nGroup nogroup\n"
	}
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o644),
		os.WriteFile(filepath.Join(dir, Path), nil, 0o644), os.Truncate(filepath.Join(dir, Path), bytes))
	if err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, program, "-f", filepath.Join(dir, "conf"), "-D", "FOREGROUND")
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its workers
	cmd.WaitDelay = apacheEnds
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	alive, died := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		err := cmd.Wait()
		died()
		ended <- err
	}()
	if awaitListener(alive, at.String()) {
		ready()
	} else {
		_ = cmd.Cancel() // unless it has ended, which is why
	}
	err = <-ended
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("flood: %s ended: %w: %s", program, err, strings.TrimSpace(said.String()))
}

// awaitListener returns when somebody listens at an address; false if nobody does.
func awaitListener(ctx context.Context, addr string) bool {
	ctx, stop := context.WithTimeout(ctx, apacheStarts)
	defer stop()
	for ctx.Err() == nil {
		var d net.Dialer
		if c, err := d.DialContext(ctx, "tcp", addr); err == nil {
			c.Close()
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false
}

// AttackAB is [Attack] by ab. It does not tell of files that it has half.
func AttackAB(ctx context.Context, o Options) (Report, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return Report{}, err
	}
	program := installed("ab")
	if program == "" {
		return Report{}, ErrNoApache
	}
	// ab -t does not stop while requests hang, and it reports when it is interrupted.
	ctx, stop := context.WithTimeout(ctx, o.Duration)
	defer stop()
	cmd := exec.CommandContext(ctx, program, "-q", "-r", "-s", "120", "-c", strconv.Itoa(o.Connections), "-n", strconv.FormatInt(max(o.Requests, int64(o.Connections)), 10), o.URL)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Second
	began := time.Now()
	out, err := cmd.CombinedOutput()
	r, ok := parseAB(string(out))
	if !ok {
		return r, fmt.Errorf("flood: ab says nothing of requests (%w): %s", err, strings.TrimSpace(string(out)))
	}
	r.Took = time.Since(began)
	return r, nil
}

var abLine = regexp.MustCompile(`(?m)^(Complete requests|Failed requests|Non-2xx responses|HTML transferred): +(\d+)`)

// parseAB reads what ab prints.
func parseAB(out string) (r Report, ok bool) {
	for _, m := range abLine.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		switch m[1] {
		case "Complete requests":
			r.Requests, ok = n, true
		case "Failed requests", "Non-2xx responses":
			r.Failed += n
		default:
			r.Bytes = n
		}
	}
	r.Requests = max(r.Requests-r.Failed, 0) // ab counts those as complete
	return r, ok
}

// installed is where the first of some programs is, on a path that has those of the
// system too; empty: none is.
func installed(names ...string) string {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		if path := "/usr/sbin/" + name; exists(path) {
			return path
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
