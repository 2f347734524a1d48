package process

import (
	"bytes"
	"context"
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

// Labelled runs f with the Label of the rank. In a world within the program (mpiv.Run) there is no
// process to report of it: its goroutines are of the rank that has made it, if one has.
func (l *Life) Labelled(ctx context.Context, f func(ctx context.Context)) {
	if l.p == nil {
		f(ctx)
		return
	}
	pprof.Do(ctx, pprof.Labels(Label, strconv.Itoa(int(l.Rank))), f)
}

// ofLibrary is the Label's value for the library's own goroutines: those of the networks that it uses
// are like a program's to look at.
const ofLibrary = "none"

// An activity is what the goroutines of a rank do, or those of no rank.
type activity struct {
	calls  int            // goroutines that sleep in a call of this library
	busy   int            // that compute, sleep for a time or wait for the system
	parked []control.Wait // that wait for other goroutines, or perhaps for timers
}

// goroutines is what those of each rank do. Strangers are the program's goroutines that
// carry no Label: package main has started them, or a package that it imports, or they were
// given other labels. They may do what ranks wait for, so they are parked, whatever they
// wait for, and busy if they compute.
func goroutines() (ranks map[int]*activity, strangers *activity) {
	var profile bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&profile, 1)
	return readProfile(profile.String())
}

var labelled = regexp.MustCompile(`^# labels: .*"` + Label + `":"(\d+|` + ofLibrary + `)"`)

// readProfile reads a profile in the format of pprof's debug=1: for each stack
// a line "N @ PC PC …", perhaps one of labels, lines for people, an empty one.
func readProfile(profile string) (ranks map[int]*activity, strangers *activity) {
	ranks, strangers = map[int]*activity{}, &activity{}
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
			stack := framesOf(pcs)
			if serves(stack) {
				break
			}
			_, labels, _ := strings.Cut(record, line)
			switch m := labelled.FindStringSubmatch(labels); {
			case m == nil:
				strangers.addStranger(n, line, stack)
			case m[1] != ofLibrary:
				rank, _ := strconv.Atoi(m[1])
				if ranks[rank] == nil {
					ranks[rank] = &activity{}
				}
				ranks[rank].add(n, line, stack)
			}
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

// add counts n goroutines of a rank whose stack is frames. The id tells them from others.
func (a *activity) add(n int, id string, frames []runtime.Frame) {
	if inCall(frames) {
		a.calls += n
	} else if op, what := parkedIn(frames); op == "" {
		a.busy += n
	} else {
		a.park(id, op, what, frames)
	}
}

// addStranger counts n goroutines that are of no rank, unless they are the library's, which
// in main waits for the ranks.
func (a *activity) addStranger(n int, id string, frames []runtime.Frame) {
	own := func(f runtime.Frame) bool { return !callsite.Ours(f.Function, f.File) }
	library := func(f runtime.Frame) bool {
		return strings.HasPrefix(f.Function, "github.com/mpiv/mpiv/") && !own(f)
	}
	switch op, _ := parkedIn(frames); {
	case inCall(frames):
		a.calls += n
	case !slices.ContainsFunc(frames, own):
	case !atRest(frames):
		a.busy += n
	case slices.ContainsFunc(frames, library):
	case op != "":
		a.park(id, op, control.NeedEvent, frames)
	default:
		a.park(id, "a system call or a sleep", control.NeedEvent, frames)
	}
}

// park adds the wait of goroutines in op for what.
func (a *activity) park(id, op, what string, frames []runtime.Frame) {
	hash := fnv.New64a()
	hash.Write([]byte(id))
	a.parked = append(a.parked, control.Wait{ID: hash.Sum64() | 1<<63, Op: op, Where: whereOf(frames),
		Needs: []control.Need{{Peer: -1, What: what, Tag: -1}}})
}

// inCall is true of a goroutine that sleeps in a call of this library.
func inCall(frames []runtime.Frame) bool {
	return slices.ContainsFunc(frames, func(f runtime.Frame) bool {
		return f.Function == "github.com/mpiv/mpiv/internal/engine.(*Engine).sleepFor"
	})
}

// atRest is true of a goroutine that does not compute.
func atRest(frames []runtime.Frame) bool {
	in := frames[0].Function
	return in == "runtime.gopark" || strings.HasPrefix(in, "syscall.") || strings.HasPrefix(in, "internal/runtime/syscall")
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
			case name == "netpollblock" && offers(frames):
				return "a server", control.NeedEvent
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

// offers is true of a server's goroutine that waits for somebody to connect, or to ask for something: it does
// nothing until then.
func offers(frames []runtime.Frame) bool {
	in := func(name string) bool {
		return slices.ContainsFunc(frames, func(f runtime.Frame) bool { return f.Function == name })
	}
	return in("internal/poll.(*FD).Accept") || in("net/http.(*connReader).backgroundRead") ||
		in("net/http.(*conn).serve") && !in("net/http.serverHandler.ServeHTTP")
}

// whereOf is the line of the program, and not of what Go has for waiting, in which a goroutine is.
func whereOf(frames []runtime.Frame) string {
	for _, f := range frames {
		below := slices.ContainsFunc([]string{"time.", "net.", "net/", "os/signal."}, func(of string) bool { return strings.HasPrefix(f.Function, of) })
		if !below && !callsite.Ours(f.Function, f.File) {
			return callsite.Line(f)
		}
	}
	return ""
}

// serves is true of a goroutine that does nothing by itself. It may carry the label of a
// rank that has started it without knowing. Go's own that brings signals wakes who receives
// from a channel, and others write profiles and traces. One in which an iterator runs (iter.Pull), or
// that calls such an iterator, goes on only when the other of the two lets it.
func serves(frames []runtime.Frame) bool {
	if len(frames) == 0 {
		return true
	}
	if in := frames[0].Function; in == "runtime.coroswitch" || in == "runtime.corostart" {
		return true
	}
	began := frames[len(frames)-1].Function
	if began == "runtime.goexit" && len(frames) > 1 {
		began = frames[len(frames)-2].Function
	}
	ofGo := slices.ContainsFunc([]string{"os/signal.loop", "runtime/pprof.", "runtime/trace."}, func(of string) bool { return strings.HasPrefix(began, of) })
	return ofGo && whereOf(frames) == "" // and not what runs a function of the program, as pprof.Do
}
