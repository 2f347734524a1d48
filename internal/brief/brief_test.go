package brief

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestLongErrorsAreShort(t *testing.T) {
	require.NoError(t, Error(nil))
	require.Equal(t, io.EOF, Error(io.EOF))
	long := Error(fmt.Errorf("host %q: %w", strings.Repeat("é", 1<<20), io.EOF))
	require.ErrorIs(t, long, io.EOF)
	require.Less(t, len(long.Error()), 2*most)
	require.True(t, utf8.ValidString(long.Error()))
	require.True(t, strings.HasPrefix(long.Error(), `host "é`) && strings.HasSuffix(long.Error(), `é": EOF`), long)
	require.NotErrorIs(t, long, errors.ErrUnsupported)
}
