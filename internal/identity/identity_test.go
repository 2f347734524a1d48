package identity

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func member(t *testing.T, a *Authority, role Role, index int) *Identity {
	t.Helper()
	c, err := a.Issue(role, index)
	require.NoError(t, err)
	i, err := c.Open()
	require.NoError(t, err)
	return i
}

func authority(t *testing.T, job string) *Authority {
	t.Helper()
	a, err := NewAuthority(job)
	require.NoError(t, err)
	return a
}

// shake runs a handshake, and returns what each end says of it.
func shake(t *testing.T, client, server *tls.Config) (clientErr, serverErr error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	b, err := ln.Accept()
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		s := tls.Server(b, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		b.Close()
		done <- err
	}()
	c := tls.Client(a, client)
	_, clientErr = c.Read(make([]byte, 1)) // in TLS 1.3 a client learns of a refusal when it reads
	a.Close()
	return clientErr, <-done
}

func TestMembersMeet(t *testing.T) {
	a := authority(t, "job-7")
	x, y := member(t, a, Process, 0), member(t, a, Process, 1)
	c, s := shake(t, x.TLS(), y.TLS())
	require.NoError(t, c)
	require.NoError(t, s)
	name, err := x.Verify(y.own.Leaf)
	require.NoError(t, err)
	require.Equal(t, Name{"job-7", Process, 1}, name)
}

func TestStrangersDoNot(t *testing.T) {
	a := authority(t, "job")
	x := member(t, a, Process, 0)
	impostor := authority(t, "job") // the same name, another key
	nobody := x.TLS()
	nobody.Certificates = nil
	old := x.TLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	ca := x.TLS() // the authority's certificate is no member's
	ca.Certificates = []tls.Certificate{{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key, Leaf: a.cert}}
	borrowed := x.TLS() // another's certificate, without its key
	borrowed.Certificates = []tls.Certificate{{Certificate: [][]byte{x.own.Leaf.Raw}, PrivateKey: impostor.key}}
	tests := map[string]*tls.Config{
		"a key of another job":         member(t, impostor, Process, 1).TLS(),
		"no certificate":               nobody,
		"TLS 1.2":                      old,
		"the authority itself":         ca,
		"a certificate of another key": borrowed,
	}
	y := member(t, a, Process, 1)
	for name, stranger := range tests {
		t.Run(name, func(t *testing.T) {
			stranger.VerifyConnection = nil // it does not mind who we are
			_, s := shake(t, stranger, y.TLS())
			require.Error(t, s, "as a client")
			c, _ := shake(t, y.TLS(), stranger)
			require.Error(t, c, "as a server")
		})
	}
}

func TestTheFencedAreRefused(t *testing.T) {
	a := authority(t, "job")
	lost, y := member(t, a, Process, 3), member(t, a, Process, 0)
	_, err := y.Verify(lost.own.Leaf)
	require.NoError(t, err)
	y.Fence(lost.Name())
	_, err = y.Verify(lost.own.Leaf)
	require.ErrorIs(t, err, ErrFenced)
	_, s := shake(t, lost.TLS(), y.TLS())
	require.ErrorIs(t, s, ErrFenced)
	_, err = y.Verify(member(t, a, Agent, 3).own.Leaf)
	require.NoError(t, err, "the agent of the same number is another")
}

func TestCredentialsAreChecked(t *testing.T) {
	a := authority(t, "job")
	c, err := a.Issue(Agent, 0)
	require.NoError(t, err)
	other, err := authority(t, "job").Issue(Agent, 0)
	require.NoError(t, err)
	for name, bad := range map[string]Credentials{
		"nothing":               {},
		"another's key":         {c.Authority, c.Certificate, other.Seed},
		"another's authority":   {other.Authority, c.Certificate, c.Seed},
		"half a key":            {c.Authority, c.Certificate, c.Seed[:16]},
		"the authority as leaf": {c.Authority, c.Authority, a.key.Seed()},
	} {
		_, err := bad.Open()
		require.Error(t, err, name)
	}
}

func FuzzName(f *testing.F) {
	f.Add("mpiv://job/process/3")
	f.Add("mpiv://job/agent/9223372036854775807")
	f.Add("mpiv://job/agent/-1")
	f.Add("mpiv://job/agent/0#") // package url forgets a fragment that is empty
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		if n, err := parseName(u); err == nil {
			require.Equal(t, u.String(), n.String())
		}
	})
}

func BenchmarkIssue(b *testing.B) {
	a, err := NewAuthority("job")
	require.NoError(b, err)
	for b.Loop() {
		c, err := a.Issue(Process, 1)
		require.NoError(b, err)
		_, err = x509.ParseCertificate(c.Certificate)
		require.NoError(b, err)
	}
}

// An authority that was handed on issues what those who know the first accept.
func TestSecret(t *testing.T) {
	a := authority(t, "job")
	b, err := a.Secret().Open()
	require.NoError(t, err)
	old, late := member(t, a, Agent, 1), member(t, b, Process, 7)
	name, err := old.Verify(late.own.Leaf)
	require.NoError(t, err)
	require.Equal(t, "mpiv://job/process/7", name.String())
	front := member(t, b, Front, 0)
	_, err = old.Verify(front.own.Leaf)
	require.NoError(t, err)

	s := a.Secret()
	s.Seed = authority(t, "job").Secret().Seed
	_, err = s.Open()
	require.ErrorContains(t, err, "for another key")
	_, err = Secret{Certificate: s.Certificate, Seed: []byte{1}}.Open()
	require.ErrorContains(t, err, "a key of 1 bytes")
	_, err = Secret{}.Open()
	require.Error(t, err)
}
