package control

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Words of a command line, values of its environment and names of files are bytes, which JSON
// does not have: what is no UTF-8 would come out as something else. Such words travel
// spelt, so that a NUL, which none of them has, says that what follows stands for a byte.

// Spell is word as JSON can carry it. One that is text stays as it is.
func Spell(word string) string {
	if utf8.ValidString(word) && strings.IndexByte(word, 0) < 0 {
		return word
	}
	var b []byte
	for len(word) > 0 {
		r, n := utf8.DecodeRuneInString(word)
		if r == utf8.RuneError && n == 1 || r == 0 {
			b, r = append(b, 0), rune(word[0])
		}
		b = utf8.AppendRune(b, r)
		word = word[n:]
	}
	return string(b)
}

// Word is the inverse of Spell.
func Word(text string) string {
	if strings.IndexByte(text, 0) < 0 {
		return text
	}
	var b []byte
	for len(text) > 0 {
		if r, n := utf8.DecodeRuneInString(text[1:]); text[0] == 0 && r <= 0xff {
			b, text = append(b, byte(r)), text[1+n:]
			continue
		}
		b, text = append(b, text[0]), text[1:]
	}
	return string(b)
}

// Each is f of all words; nil stays nil.
func Each(words []string, f func(string) string) []string {
	if words == nil {
		return nil
	}
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = f(w)
	}
	return all
}

// MarshalJSON and UnmarshalJSON keep words that are no text.
func (s Spawn) MarshalJSON() ([]byte, error) {
	type spawn Spawn // without these methods
	return json.Marshal(spawn(s.words(Spell)))
}

func (s *Spawn) UnmarshalJSON(b []byte) error {
	type spawn Spawn
	err := json.Unmarshal(b, (*spawn)(s))
	*s = s.words(Word)
	return err
}

// words is s with f of all its words.
func (s Spawn) words(f func(string) string) Spawn {
	s.Path, s.Dir, s.Args, s.Env = f(s.Path), f(s.Dir), Each(s.Args, f), Each(s.Env, f)
	return s
}

// MarshalJSON and UnmarshalJSON keep an address that is no text, as one within a directory may be.
func (a Addr) MarshalJSON() ([]byte, error) {
	type addr Addr // without these methods
	a.Addr = Spell(a.Addr)
	return json.Marshal(addr(a))
}

func (a *Addr) UnmarshalJSON(b []byte) error {
	type addr Addr // without these methods
	err := json.Unmarshal(b, (*addr)(a))
	a.Addr = Word(a.Addr)
	return err
}
