package process

import (
	"bytes"
	"hash/fnv"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/control"
)

// Label is the profiler label that a rank's goroutines carry, and those they
// start, with the rank as its value. It is how a report tells a rank whose
// goroutines all wait from one that computes.
const Label = "mpiv-rank"

// An activity is what the goroutines of a rank do.
type activity struct {
	calls  int            // goroutines that sleep in a call of this library
	busy   int            // that compute, sleep for a time or wait for the system
	parked []control.Wait // that wait for other goroutines, or perhaps for timers
}

// goroutines is what those of each rank do. Strangers are goroutines that carry
// no Label, and may do anything.
func goroutines() (ranks map[int]*activity, strangers bool) {
	var profile bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&profile, 1)
	return readProfile(profile.String(), framesOf)
}

var labelled = regexp.MustCompile(`^# labels: .*"` + Label + `":"(\d+)"`)

// readProfile reads a profile in the format of pprof's debug=1: for each stack
// a line "N @ PC PC …", perhaps one of labels, lines for people, an empty one.
func readProfile(profile string, frames func(pcs []uintptr) []runtime.Frame) (ranks map[int]*activity, strangers bool) {
	ranks = map[int]*activity{}
	for record := range strings.SplitSeq(profile, "\n\n") {
		for line := range strings.Lines(record) {
			f := strings.Fields(line)
			if len(f) < 2 || f[1] != "@" {
				continue
			}
			n, _ := strconv.Atoi(f[0])
			var pcs []uintptr
			for _, s := range f[2:] {
				pc, _ := strconv.ParseUint(s, 0, 64)
				pcs = append(pcs, uintptr(pc))
			}
			stack := frames(pcs)
			if bringsSignals(stack) {
				break
			}
			_, labels, _ := strings.Cut(record, line)
			m := labelled.FindStringSubmatch(labels)
			if m == nil {
				strangers = strangers || stranger(stack)
				break
			}
			rank, _ := strconv.Atoi(m[1])
			if ranks[rank] == nil {
				ranks[rank] = &activity{}
			}
			ranks[rank].add(n, line, stack)
			break
		}
	}
	return ranks, strangers
}

func framesOf(pcs []uintptr) (all []runtime.Frame) {
	if len(pcs) == 0 {
		return nil
	}
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		all = append(all, f)
		if !more {
			return all
		}
	}
}

// add counts n goroutines whose stack is frames. The id tells them from others.
func (a *activity) add(n int, id string, frames []runtime.Frame) {
	for _, f := range frames {
		if f.Function == "github.com/mpiv/mpiv/internal/engine.(*Engine).sleepFor" {
			a.calls += n
			return
		}
	}
	op, what := parkedIn(frames)
	if op == "" {
		a.busy += n
		return
	}
	hash := fnv.New64a()
	hash.Write([]byte(id))
	a.parked = append(a.parked, control.Wait{ID: hash.Sum64() | 1<<63, Op: op, Where: whereOf(frames),
		Needs: []control.Need{{Peer: -1, What: what, Tag: -1}}})
}

// parkedIn says in which operation a goroutine waits, and whether only another
// goroutine can end that; "" if it does not, or the system or the clock will.
func parkedIn(frames []runtime.Frame) (op, what string) {
	if len(frames) == 0 || frames[0].Function != "runtime.gopark" {
		return "", "" // it runs, or could
	}
	for _, f := range frames[1:] {
		name, inRuntime := strings.CutPrefix(f.Function, "runtime.")
		if inRuntime {
			switch {
			case strings.HasPrefix(name, "chanrecv"):
				return "a channel receive", control.NeedEvent
			case strings.HasPrefix(name, "chansend"):
				return "a channel send", control.NeedEvent
			case name == "selectgo", name == "block":
				return "select", control.NeedEvent
			case name == "goparkunlock", strings.HasPrefix(name, "semacquire"):
				continue
			}
			return "", ""
		}
		name = strings.TrimPrefix(f.Function, "internal/")
		name, inSync := strings.CutPrefix(name, "sync.")
		if !inSync {
			break
		}
		if strings.HasPrefix(name, "runtime_Semacquire") || strings.HasPrefix(name, "runtime_notifyListWait") {
			what = control.NeedGoroutine
			continue
		}
		op = strings.NewReplacer("(*", "", ")", "").Replace(name)
	}
	if what == "" {
		return "", ""
	}
	return op, what
}

func whereOf(frames []runtime.Frame) string {
	for _, f := range frames {
		if !callsite.Ours(f.Function, f.File) {
			return callsite.Line(f)
		}
	}
	return ""
}

// bringsSignals is true of Go's goroutine that waits for signals, which may carry the
// label of the rank that asked for some first. It does nothing but wake who receives
// from a channel.
func bringsSignals(frames []runtime.Frame) bool {
	return slices.ContainsFunc(frames, func(f runtime.Frame) bool { return f.Function == "os/signal.loop" })
}

// stranger is true of a goroutine without a label that is neither the library's
// nor Go's own: it may do what those of ranks wait for. In main the library
// waits for the ranks.
func stranger(frames []runtime.Frame) bool {
	for _, f := range frames {
		if strings.HasPrefix(f.Function, "github.com/mpiv/mpiv/") && callsite.Ours(f.Function, f.File) {
			return false
		}
	}
	return whereOf(frames) != ""
}
