package leader

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// An Entry is an input with its time, as a log keeps it: {"at": …, "kind": "HostLost", "in": {…}}.
type Entry struct {
	At time.Time
	In Input
}

// inputs is every kind of input, by its name.
var inputs = func() map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for _, in := range []Input{
		HostJoined{}, HostLost{}, HostReading{}, ProcessStarted{}, ProcessReady{}, ProcessLost{}, Silent{}, Heard{},
		Breach{}, Recovered{}, Fine{}, Traffic{}, StateSize{}, PlanEnded{}, Placed{}, LeadingFrom{}, Stays{},
		MoveRank{}, Drain{}, Cordon{}, Uncordon{}, AddHost{}, Unreached{}, Ending{}, Tick{},
	} {
		all[reflect.TypeOf(in).Name()] = reflect.TypeOf(in)
	}
	return all
}()

type entry struct {
	At   time.Time       `json:"at"`
	Kind string          `json:"kind"`
	In   json.RawMessage `json:"in"`
}

// MarshalJSON and UnmarshalJSON are inverse to each other.
func (e Entry) MarshalJSON() ([]byte, error) {
	if e.In == nil {
		return nil, fmt.Errorf("log entry at %v: it has no input", e.At)
	}
	in, err := json.Marshal(e.In)
	if err != nil {
		return nil, err
	}
	return json.Marshal(entry{e.At, reflect.TypeOf(e.In).Name(), in})
}

func (e *Entry) UnmarshalJSON(text []byte) error {
	var raw entry
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	kind, ok := inputs[raw.Kind]
	if !ok {
		return fmt.Errorf("log entry of kind %q: this version knows no such input", raw.Kind)
	}
	in := reflect.New(kind)
	d := json.NewDecoder(strings.NewReader(string(raw.In)))
	d.DisallowUnknownFields() // an input half understood would be replayed otherwise than it was decided
	if err := d.Decode(in.Interface()); err != nil {
		return fmt.Errorf("log entry of kind %s: %w", raw.Kind, err)
	}
	e.At, e.In = raw.At, in.Elem().Interface().(Input)
	return nil
}
