package chaos

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A SyntaxError says where in a text a schedule makes no sense.
type SyntaxError struct {
	Item   string // the fault in question, as it was written
	Offset int    // bytes of the text before what is wrong
	Err    error
}

func (e *SyntaxError) Error() string {
	if e.Item == "" {
		return fmt.Sprintf("at character %d: %v", e.Offset+1, e.Err)
	}
	return fmt.Sprintf("at character %d, in %q: %v", e.Offset+1, e.Item, e.Err)
}

func (e *SyntaxError) Unwrap() error { return e.Err }

// Parse reads a schedule: faults with semicolons between, each WHAT@WHEN, and "for HOW
// LONG" unless it is a moment or lasts until the job ends.
//
//	kill 2@5s; stop 3@8s for 4s; duty 1 10%@3s for 5s; move 2@4s; move 2 to Y@6s
//	slow X 5mbit@3s for 4s; slow X/lan 5mbit@3s; cut X@2s; cut X|Y,Z@9s for 2s
//	flood X@12s for 10s; flood X from A@12s
//	random seed=7 kills=10 stops=2 duties=2 moves=3 every=2s@5s for 1s
//	random seed=7 slows=2 cuts=2 floods=1 hosts=X,Y every=8s for 3s
//
// The error is a [*SyntaxError]. String of the result parses to the same.
func Parse(text string) (Schedule, error) {
	var s Schedule
	for offset := 0; offset <= len(text); {
		end := strings.IndexByte(text[offset:], ';')
		if end < 0 {
			end = len(text) - offset
		}
		p := parser{text: text[offset : offset+end], offset: offset}
		if i := oddByte(p.text); i >= 0 {
			return nil, p.at(word{offset: i}, fmt.Errorf("the byte 0x%x is no UTF-8: names of hosts and networks are letters, digits, dots, dashes and underscores", p.text[i]))
		}
		p.split()
		if len(p.words) > 0 {
			item, err := p.item()
			if err == nil {
				if err = item.check(); err != nil {
					err = p.at(p.words[0], err)
				}
			}
			if err != nil {
				return nil, err
			}
			s = append(s, item)
		}
		offset += end + 1
	}
	if len(s) == 0 {
		return nil, &SyntaxError{Err: errors.New(`there is no fault: write one such as "kill 2@5s"`)}
	}
	if len(s) > most {
		return nil, &SyntaxError{Err: fmt.Errorf("there are more than %d faults", most)}
	}
	return s, nil
}

// oddByte is where the first byte of text is that belongs to no character; -1 if all do.
func oddByte(text string) int {
	for i, r := range text {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(text[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

// A parser reads one item.
type parser struct {
	text   string
	offset int // of text
	words  []word
	next   int
}

// A word of the text. An at sign is one by itself.
type word struct {
	text   string
	offset int // in the parser's text
}

func (p *parser) split() {
	begin := -1
	end := func(i int) {
		if begin >= 0 {
			p.words = append(p.words, word{p.text[begin:i], begin})
		}
		begin = -1
	}
	for i := 0; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			end(i)
		case c == '@':
			end(i)
			p.words = append(p.words, word{"@", i})
		case begin < 0:
			begin = i
		}
	}
	end(len(p.text))
}

// at is err as an error about w.
func (p *parser) at(w word, err error) error {
	return &SyntaxError{Item: strings.TrimSpace(p.text), Offset: p.offset + w.offset, Err: err}
}

// take returns the next word, which is about what; usage is how to write it.
func (p *parser) take(usage string) (word, error) {
	if p.next == len(p.words) || p.words[p.next].text == "@" {
		w := word{offset: len(p.text)}
		if p.next < len(p.words) {
			w = p.words[p.next]
		}
		return w, p.at(w, fmt.Errorf("something is missing: write %s", usage))
	}
	p.next++
	return p.words[p.next-1], nil
}

// has takes the next word if it is text.
func (p *parser) has(text string) bool {
	if p.next < len(p.words) && p.words[p.next].text == text {
		p.next++
		return true
	}
	return false
}

// kinds is how each fault is written, but for its times, and what reads that.
var kinds = map[string]struct {
	usage string
	read  func(p *parser, usage string) (Fault, error)
}{
	"kill": {"kill RANK@TIME, such as kill 2@5s", func(p *parser, usage string) (Fault, error) {
		rank, err := p.rank(usage)
		return Kill(rank), err
	}},
	"stop": {"stop RANK@TIME for TIME, such as stop 3@8s for 4s", func(p *parser, usage string) (Fault, error) {
		rank, err := p.rank(usage)
		return Stop(rank), err
	}},
	"duty": {"duty RANK SHARE@TIME for TIME, such as duty 1 10%@3s for 5s", func(p *parser, usage string) (Fault, error) {
		rank, err := p.rank(usage)
		if err != nil {
			return Fault{}, err
		}
		w, err := p.take(usage)
		if err != nil {
			return Fault{}, err
		}
		digits, ok := strings.CutSuffix(w.text, "%")
		percent, wrong := natural(digits)
		if !ok || wrong != nil || percent < 1 || percent > 99 {
			return Fault{}, p.at(w, fmt.Errorf("%q is no share of the time: write 1%% to 99%%", w.text))
		}
		return Duty(rank, percent), nil
	}},
	"move": {"move RANK@TIME or move RANK to HOST@TIME, such as move 2@4s", func(p *parser, usage string) (Fault, error) {
		rank, err := p.rank(usage)
		f := Move(rank)
		if err == nil && p.has("to") {
			f.Host, err = p.name(usage)
		}
		return f, err
	}},
	"slow": {"slow HOST RATE@TIME for TIME, such as slow X 5mbit@3s for 4s", func(p *parser, usage string) (Fault, error) {
		w, err := p.take(usage)
		if err != nil {
			return Fault{}, err
		}
		rate, err := p.take(usage)
		if err != nil {
			return Fault{}, err
		}
		if err := checkRate(rate.text); err != nil {
			return Fault{}, p.at(rate, err)
		}
		f := Slow(w.text, rate.text)
		return f, p.whole(w, f.Host, f.Network)
	}},
	"cut": {"cut HOST@TIME for TIME or cut HOSTS|HOSTS@TIME for TIME, such as cut X|Y,Z@9s for 2s", func(p *parser, usage string) (Fault, error) {
		w, err := p.take(usage)
		if err != nil {
			return Fault{}, err
		}
		f := Cut(strings.Split(w.text, "|")...)
		return f, p.whole(w, f.Host, f.Network)
	}},
	"flood": {"flood HOST@TIME for TIME or flood HOST from HOST@TIME for TIME, such as flood X@12s for 10s", func(p *parser, usage string) (Fault, error) {
		name, err := p.name(usage)
		f := Flood(name)
		if err == nil && p.has("from") {
			f.Attacker, err = p.name(usage)
		}
		return f, err
	}},
}

// whole refuses "X/", which names no network.
func (p *parser) whole(w word, host, network string) error {
	if host != "" && network == "" && strings.HasSuffix(w.text, "/") {
		return p.at(w, fmt.Errorf("%q: behind the slash is the name of a network, such as %slan", w.text, w.text))
	}
	return nil
}

// item reads all words.
func (p *parser) item() (Item, error) {
	w := p.words[p.next]
	p.next++
	if w.text == "random" {
		return p.random()
	}
	k, ok := kinds[w.text]
	if !ok {
		return nil, p.at(w, fmt.Errorf("%q is no fault: there are kill, stop, duty, move, slow, cut, flood and random", w.text))
	}
	f, err := k.read(p, k.usage)
	if err != nil {
		return nil, err
	}
	if !p.has("@") {
		return nil, p.unexpected("it does not say when: write " + k.usage)
	}
	if f.Start, err = p.time(k.usage); err != nil {
		return nil, err
	}
	if f.Length, err = p.length(k.usage); err != nil {
		return nil, err
	}
	return f, nil
}

// random reads the words behind "random".
func (p *parser) random() (Item, error) {
	const usage = "random seed=7 kills=10 every=2s"
	r, given := Random{}, map[string]bool{}
	counts := map[string]*int{"kills": &r.Kills, "stops": &r.Stops, "duties": &r.Duties, "moves": &r.Moves,
		"slows": &r.Slows, "cuts": &r.Cuts, "floods": &r.Floods}
	for p.next < len(p.words) && p.words[p.next].text != "@" && p.words[p.next].text != "for" {
		w := p.words[p.next]
		p.next++
		name, value, _ := strings.Cut(w.text, "=")
		if given[name] {
			return nil, p.at(w, fmt.Errorf("%s is there twice", name))
		}
		given[name] = true
		var err error
		switch {
		case name == "seed":
			if r.Seed, err = strconv.ParseUint(value, 10, 64); err != nil {
				err = errors.New("a seed is a number, such as seed=7")
			}
		case name == "hosts":
			r.Hosts = strings.Split(value, ",")
		case name == "every":
			r.Every, err = duration(value)
		case counts[name] != nil:
			*counts[name], err = natural(value)
		default:
			err = fmt.Errorf("%q is nothing that random takes: there are seed, kills, stops, duties, moves, slows, cuts, floods, hosts and every, as in %s", name, usage)
		}
		if err != nil {
			return nil, p.at(w, err)
		}
	}
	var err error
	if p.has("@") {
		if r.Start, err = p.time(usage); err != nil {
			return nil, err
		}
	}
	r.Length, err = p.length(usage)
	return r, err
}

// length reads "for TIME", if that is there, and is the end of the item.
func (p *parser) length(usage string) (d time.Duration, err error) {
	if p.has("for") {
		w := word{offset: len(p.text)}
		if p.next < len(p.words) {
			w = p.words[p.next]
		}
		if d, err = p.time(usage); err != nil {
			return 0, err
		}
		if d == 0 {
			return 0, p.at(w, errors.New("it lasts no time: leave out \"for\", and it lasts until the job ends"))
		}
	}
	if p.next < len(p.words) {
		return 0, p.unexpected("write " + usage)
	}
	return d, nil
}

func (p *parser) unexpected(hint string) error {
	if p.next == len(p.words) {
		return p.at(word{offset: len(p.text)}, errors.New(hint))
	}
	w := p.words[p.next]
	return p.at(w, fmt.Errorf("%q is not expected there: %s", w.text, hint))
}

func (p *parser) rank(usage string) (int, error) {
	w, err := p.take(usage)
	if err != nil {
		return 0, err
	}
	n, err := natural(w.text)
	if err != nil || n > maxRank {
		return 0, p.at(w, fmt.Errorf("%q is no rank: write %s", w.text, usage))
	}
	return n, nil
}

func (p *parser) name(usage string) (string, error) {
	w, err := p.take(usage)
	if err == nil {
		if err = checkName("host", w.text); err != nil {
			err = p.at(w, err)
		}
	}
	return w.text, err
}

func (p *parser) time(usage string) (time.Duration, error) {
	w, err := p.take(usage)
	if err != nil {
		return 0, err
	}
	d, err := duration(w.text)
	if err != nil {
		return 0, p.at(w, err)
	}
	return d, nil
}

func natural(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no number from 0 on", text)
	}
	return n, nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > longest {
		return 0, fmt.Errorf("%q is no time: write one such as 5s, 300ms or 2m", text)
	}
	return d, nil
}
