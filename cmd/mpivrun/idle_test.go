package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOptionsWithoutEffectAreSaid(t *testing.T) {
	tests := []struct {
		words string
		hosts int
		want  []string // options
	}{
		{"prog", 1, nil},
		{"--snapshot 1 --spares 1 --log-disk 1GiB --log-bytes 1MiB prog", 1, nil},
		{"--snapshot 1 --log-disk 1GiB prog", 1, []string{"--snapshot", "--log-disk"}},
		{"--survive none --log-bytes 1MiB prog", 1, []string{"--log-bytes"}},
		{"--spare-memory 1MiB prog", 1, []string{"--spare-memory"}},
		{"--spare-memory 1MiB --spares 1 prog", 1, nil},
		{"--silence 3 --grace 5 --contracts learn --contracts-file f --contract X>Y:1MB/s prog", 1, []string{"--grace", "--silence", "--contracts", "--contracts-file"}},
		{"--silence 3 --grace 5 --contracts learn --contracts-file f --contract X>Y:1MB/s prog", 2, nil},
		{"--contracts off prog", 1, nil},
		{"--survive report --grace 5 prog", 2, []string{"--grace"}},
		{"--survive none --contracts learn --contracts-file f prog", 2, []string{"--contracts", "--contracts-file"}},
		{"--contracts off --contracts-file f prog", 2, []string{"--contracts-file"}},
	}
	for _, tt := range tests {
		t.Run(tt.words, func(t *testing.T) {
			r, err := parseRun(strings.Fields(tt.words))
			require.NoError(t, err)
			var got []string
			for _, sentence := range r.idle(tt.hosts, tt.hosts == 1) {
				option, _, said := strings.Cut(sentence, " has no effect: ")
				require.True(t, said, sentence)
				got = append(got, option)
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// One host that is another one can fall silent.
func TestSilenceOfOneOtherHostHasAnEffect(t *testing.T) {
	r, err := parseRun([]string{"--silence", "3", "prog"})
	require.NoError(t, err)
	require.Empty(t, r.idle(1, false))
}
