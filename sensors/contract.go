package sensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// A Contract is what links have been seen to deliver under normal load, or what
// was set by hand.
type Contract struct {
	Promises []Promise // in the order of their links and size classes
}

// A Promise is the contract of one link for messages of one size class.
type Promise struct {
	Link Link      `json:"link"`
	Size SizeClass `json:"size"`

	// Rate is the median of the delivery rate in bytes a second. It follows a slow
	// change, but not below half of Best without a breach.
	Rate float64 `json:"rate_bytes_per_second"`
	Best float64 `json:"best_bytes_per_second"` // the median when it was learned

	// Spread is the standard deviation of the logarithm of the rate, of readings of
	// 100 ms, with what neighbouring readings have in common counted in.
	Spread float64 `json:"spread"`

	// Wander is how far the rate strays from its median over minutes, in the same
	// measure. The more it does, the lower it may be.
	Wander float64 `json:"wander"`

	Samples int     `json:"samples"`      // readings that it rests on
	Busy    float64 `json:"busy_seconds"` // and for how long something was outstanding in them
	RTT     float64 `json:"rtt_seconds"`  // its median; 0: not known

	Learned time.Time `json:"learned,omitzero"` // when it was; zero: not known

	// Doubt says why this may not be the norm: it was learned while something was
	// wrong. Empty: nothing was.
	Doubt string `json:"doubt,omitempty"`
}

// Usual is how long a round trip takes; 0: not known.
func (p Promise) Usual() time.Duration { return time.Duration(p.RTT * float64(time.Second)) }

func (p Promise) compare(q Promise) int {
	return cmp.Or(p.Link.compare(q.Link), cmp.Compare(p.Size, q.Size))
}

func (p Promise) check() error {
	positive := func(x, most float64) bool { return x > 0 && x <= most }
	switch {
	case p.Link.From == "" || p.Link.To == "":
		return errors.New("it lacks a host's name")
	case p.Size > Large:
		return fmt.Errorf("its size is %v", p.Size)
	case !positive(p.Rate, mostRate) || !positive(p.Best, mostRate):
		return fmt.Errorf("its rates are %v and %v: want more than 0 and at most %v bytes a second", p.Rate, p.Best, mostRate)
	case !positive(p.Spread, 10):
		return fmt.Errorf("its spread is %v: want more than 0 and at most 10", p.Spread)
	case !(p.Wander >= 0 && p.Wander <= 10):
		return fmt.Errorf("its wander is %v: want 0 to 10", p.Wander)
	case p.Samples < 0 || !(p.Busy >= 0 && p.Busy <= 1e12):
		return fmt.Errorf("it rests on %d samples of %v s", p.Samples, p.Busy)
	case !(p.RTT >= 0 && p.RTT <= 3600):
		return fmt.Errorf("its round trip is %v s: want 0 to 3600", p.RTT)
	}
	return nil
}

const (
	contractFormat  = "mpiv contract"
	contractVersion = 1
	contractBytes   = 64 << 20
	mostRate        = 1e15 // bytes a second
)

type contractFile struct {
	Format   string    `json:"format"`
	Version  int       `json:"version"`
	Promises []Promise `json:"promises"`
}

// Store writes c as JSON.
func (c Contract) Store(w io.Writer) error {
	c = Contract{slices.Clone(c.Promises)}
	if err := c.sort(); err != nil {
		return fmt.Errorf("store contracts: %w", err)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if c.Promises == nil {
		c.Promises = []Promise{}
	}
	if err := e.Encode(contractFile{contractFormat, contractVersion, c.Promises}); err != nil {
		return fmt.Errorf("store contracts: %w", err)
	}
	return nil
}

// Load reads what Store wrote.
func Load(r io.Reader) (Contract, error) {
	var whole json.RawMessage
	limited := &io.LimitedReader{R: r, N: contractBytes}
	d := json.NewDecoder(limited)
	err := d.Decode(&whole)
	if err != nil && limited.N <= 0 {
		return Contract{}, fmt.Errorf("load contracts: the file is longer than %d bytes", contractBytes)
	}
	var f contractFile
	if err == nil { // first what it is: another version may have what this one does not know
		err = json.Unmarshal(whole, &struct {
			Format  *string
			Version *int
		}{&f.Format, &f.Version})
	}
	if err != nil {
		return Contract{}, fmt.Errorf("load contracts: this is no file of contracts: %w", err)
	}
	if f.Format != contractFormat {
		return Contract{}, fmt.Errorf("load contracts: the format is %q: want %q", f.Format, contractFormat)
	}
	if f.Version != contractVersion {
		return Contract{}, fmt.Errorf("load contracts: the file has version %d and this program reads version %d: learn the contracts anew", f.Version, contractVersion)
	}
	strict := json.NewDecoder(bytes.NewReader(whole))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&f); err != nil {
		return Contract{}, fmt.Errorf("load contracts: this is no file of contracts: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Contract{}, errors.New("load contracts: something follows the contracts in the file")
	}
	c := Contract{f.Promises}
	if err := c.sort(); err != nil {
		return Contract{}, fmt.Errorf("load contracts: %w", err)
	}
	return c, nil
}

func (c Contract) sort() error {
	slices.SortFunc(c.Promises, Promise.compare)
	for i, p := range c.Promises {
		if err := p.check(); err != nil {
			return fmt.Errorf("the promise of %v for %v messages: %w", p.Link, p.Size, err)
		}
		if i > 0 && p.compare(c.Promises[i-1]) == 0 {
			return fmt.Errorf("there are two promises of %v for %v messages", p.Link, p.Size)
		}
	}
	return nil
}

// A Difference is a promise that two contracts do not have in common.
type Difference struct {
	Before *Promise `json:"before,omitempty"` // one may be nil
	After  *Promise `json:"after,omitempty"`
}

// String is a line for people.
func (d Difference) String() string {
	switch {
	case d.Before == nil:
		return fmt.Sprintf("%v %v: new, %s", d.After.Link, d.After.Size, bytesPerSecond(d.After.Rate))
	case d.After == nil:
		return fmt.Sprintf("%v %v: gone, was %s", d.Before.Link, d.Before.Size, bytesPerSecond(d.Before.Rate))
	}
	return fmt.Sprintf("%v %v: %s, was %s (×%.2f)", d.After.Link, d.After.Size,
		bytesPerSecond(d.After.Rate), bytesPerSecond(d.Before.Rate), d.After.Rate/d.Before.Rate)
}

// Compare returns, in order, the promises that only one of two contracts has and
// those whose rates differ by more than the greater spread of the two.
func Compare(before, after Contract) (all []Difference) {
	a, b := slices.Clone(before.Promises), slices.Clone(after.Promises)
	slices.SortFunc(a, Promise.compare)
	slices.SortFunc(b, Promise.compare)
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].compare(b[0]) < 0:
			all = append(all, Difference{Before: &a[0]})
			a = a[1:]
		case len(a) == 0 || a[0].compare(b[0]) > 0:
			all = append(all, Difference{After: &b[0]})
			b = b[1:]
		default:
			if math.Abs(math.Log(a[0].Rate/b[0].Rate)) > max(a[0].Spread, b[0].Spread) {
				all = append(all, Difference{&a[0], &b[0]})
			}
			a, b = a[1:], b[1:]
		}
	}
	return all
}
