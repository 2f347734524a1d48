// Package spelling finds what was meant by a word that there is not.
package spelling

// Nearest is the first of words that is nearest to word; empty if none is near: one letter off for
// each three of the longer one, and two at most. Of words of one or two letters none ever is.
func Nearest(word string, words ...string) string {
	best, nearest := most+1, ""
	for _, w := range words {
		if d := distance(word, w); d < best && d <= max(len(word), len(w))/3 && len(w) > 2 {
			best, nearest = d, w
		}
	}
	return nearest
}

// most is the largest distance that is near.
const most = 2

// distance is how many letters to add, remove, change or swap with the next make b of a. What is more than
// most need not be right.
func distance(a, b string) int {
	if len(a) > len(b)+most || len(b) > len(a)+most {
		return most + 1
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = min(d, row[j]+1, last[j+1]+1)
		}
	}
	return row[len(b)]
}
