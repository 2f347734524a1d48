package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is also the program that rerunInside starts in these tests: it ends
// with 0 when its namespace is new and set up as ordered.
func TestMain(m *testing.M) {
	if !inside() {
		os.Exit(m.Run())
	}
	err := prepareInside("reno")
	if err == nil {
		var carried int64
		if carried, err = readInterface("lo"); err == nil && carried != 0 {
			err = fmt.Errorf("the loopback interface has carried %d bytes before anybody used it", carried)
		}
	}
	if now, readErr := congestionControl(); err == nil && (readErr != nil || now != "reno") {
		err = fmt.Errorf("congestion control is %q, want reno (%v)", now, readErr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestRerunInsideLeavesTheHostAlone(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is not installed")
	}
	if err := exec.Command("unshare", "-rn", "true").Run(); err != nil {
		t.Skip("network namespaces are not allowed here")
	}
	before, err := congestionControl()
	require.NoError(t, err)
	code, err := rerunInside()
	require.NoError(t, err)
	require.Zero(t, code, "what the program inside found is on standard error")
	after, err := congestionControl()
	require.NoError(t, err)
	require.Equal(t, before, after)
}
