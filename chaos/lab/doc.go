// Package lab makes several hosts on one machine, and breaks them to order.
//
// A host is a network namespace with a name and addresses of its own. Hosts meet
// on networks, which are bridges in one more namespace; every cable between the
// two is shaped in both directions. Links are cut, partitioned, slowed, delayed;
// hosts are stopped, starved and killed. Programs run on a host as processes
// ([Lab.Command], [Lab.LaunchAgent]), or inside this process ([Lab.Do]), so that
// one test binary can be all hosts at once.
//
// A program that makes labs calls [Enter] first of all, a test binary [Main]:
//
//	func TestMain(m *testing.M) { lab.Main(m) }
//
//	func TestRanksLeaveAFloodedHost(t *testing.T) {
//		l := lab.ForTest(t, lab.Options{}) // skips where no lab can be made
//		out, err := l.Command(t.Context(), "X", "hostname").Output()
//		…
//	}
//
// It needs root, or a kernel that lets users make user namespaces. Nothing is
// left of a lab when it is closed, or when the process that made it is killed.
package lab
