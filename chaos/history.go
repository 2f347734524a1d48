package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A Step is what became of a fault.
type Step string

const (
	Begun   Step = "begun"   // it was done
	Ended   Step = "ended"   // it was undone; a move: the rank goes on elsewhere
	Refused Step = "refused" // it could not be done, or undone; Text says why
	Missed  Step = "missed"  // the job ended before
)

// A Record is a line of a job's history.
type Record struct {
	Time  time.Time     `json:"time"`     // UTC
	After time.Duration `json:"after_ns"` // since the job's ranks started
	Fault string        `json:"fault"`    // as in the schedule: "kill 2@5s"
	Step  Step          `json:"step"`

	// Of faults that are done to a rank, once it is known: who had it.
	Rank    *int   `json:"rank,omitempty"`
	Process *int   `json:"process,omitempty"` // its number in the job
	PID     int    `json:"pid,omitempty"`
	Host    string `json:"host,omitempty"` // of other faults: whose cables, or who is flooded

	Text string `json:"text,omitempty"` // for people
}

// A History is what was done to a job, in order.
type History []Record

// Append appends r as one line of JSON, with its end.
func Append(b []byte, r Record) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		panic(fmt.Sprintf("chaos: a record that is no JSON: %v", err)) // a year beyond 9999
	}
	return buf.Bytes()
}

// ReadHistory reads lines as Append writes them, to the end.
func ReadHistory(r io.Reader) (History, error) {
	var h History
	for dec := json.NewDecoder(r); ; {
		var rec Record
		if err := dec.Decode(&rec); err == io.EOF {
			return h, nil
		} else if err != nil {
			return h, fmt.Errorf("chaos: record %d of the history: %w", len(h)+1, err)
		}
		h = append(h, rec)
	}
}

// Of is the records of one step.
func (h History) Of(s Step) (all History) {
	for _, r := range h {
		if r.Step == s {
			all = append(all, r)
		}
	}
	return all
}
