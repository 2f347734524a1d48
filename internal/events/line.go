package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"time"
)

// Append appends e as one line, with its end. Numbers that JSON does not have, infinite ones
// and those that are none, and times that it does not have are written as zero ones, and so
// left out where those are.
func Append(b []byte, e Event) []byte {
	line, err := encode(b, e)
	if err != nil {
		line, err = encode(b, written(reflect.ValueOf(e)).Interface().(Event))
	}
	if err != nil {
		panic(fmt.Sprintf("events: an event that is no JSON: %v", err)) // there is nothing else in it that could
	}
	return line
}

func encode(b []byte, e Event) ([]byte, error) {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(e)
	return buf.Bytes(), err
}

// written is a copy of v, without what cannot be written.
func written(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	if at, ok := reflect.TypeAssert[time.Time](v); ok {
		if _, err := at.MarshalText(); err != nil {
			out.SetZero()
		}
		return out
	}
	switch v.Kind() {
	case reflect.Float64:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			out.SetZero()
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(written(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(written(v.Index(i)))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(written(v.Field(i)))
			}
		}
	}
	return out
}

// Parse reads a line as Append writes it, with or without its end. It refuses all
// others, so that Append gives the same line.
func Parse(line []byte) (Event, error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	var e Event
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return e, fmt.Errorf("a line that is no event: %w", err)
	}
	if head.V != Version {
		return e, fmt.Errorf("an event of version %d; this mpivrun reads version %d", head.V, Version)
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return e, fmt.Errorf("an event that cannot be read (was it written by another version of mpivrun?): %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return e, fmt.Errorf("more than an event in a line")
	}
	if err := e.complete(); err != nil {
		return e, err
	}
	if again := Append(nil, e); !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), line) {
		return e, fmt.Errorf("an event that is not written as mpivrun does, but for %s", again)
	}
	return e, nil
}

// complete is an error if e has not what its kind always has.
func (e *Event) complete() error {
	i := slices.IndexFunc(Kinds, func(d Description) bool { return d.Kind == e.Kind })
	if i < 0 {
		return fmt.Errorf("an event of no known kind: %q", e.Kind)
	}
	d := Kinds[i]
	switch {
	case e.Seq == 0:
		return fmt.Errorf("%s: it has no number", e.Kind)
	case d.Host && e.Host == "":
		return fmt.Errorf("%s: it names no host", e.Kind)
	case d.Process && e.Process == nil, d.Rank && e.Rank == nil:
		return fmt.Errorf("%s: it does not say of whom", e.Kind)
	case e.payload() != d.Payload:
		return fmt.Errorf("%s: its payload is %q, not %q", e.Kind, e.payload(), d.Payload)
	}
	return nil
}

// payload is the JSON names of the payloads that are set.
func (e *Event) payload() string {
	names := ""
	for _, p := range []struct {
		name string
		set  bool
	}{
		{"job", e.Job != nil}, {"agent", e.Agent != nil}, {"started", e.Started != nil}, {"exited", e.Exited != nil},
		{"failed", e.Failed != nil}, {"moved", e.Moved != nil}, {"arrived", e.Arrived != nil}, {"path", e.Path != nil}, {"refused", e.Refused != nil}, {"signal", e.Signal != nil}, {"fault", e.Fault != nil},
		{"verdict", e.Verdict != nil}, {"ended", e.Ended != nil}, {"reading", e.Reading != nil}, {"decision", e.Decision != nil}, {"breach", e.Breach != nil},
	} {
		if p.set {
			names += p.name
		}
	}
	return names
}
