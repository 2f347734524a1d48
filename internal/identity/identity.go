// Package identity is who is who in a job: the job's own authority, a key and a
// certificate for each agent and process, and the check that both ends of a
// connection make. It reads and writes no files: keys live in memory and go
// where their owner sends them.
//
// A number proves nothing (what thief-induced-certification, §"Conclusions",
// leaves open); the key behind a certificate does.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Role is what a member of a job is.
type Role string

const (
	Agent   Role = "agent"
	Process Role = "process"
	Front   Role = "front" // shows a job to a user, and passes on what the user says
)

// A Name is a member of a job: the index-th agent or process of it. Who comes in the place of
// one that was lost has another index. Its text is a URI, "mpiv://JOB/process/3".
type Name struct {
	Job   string
	Role  Role
	Index int
}

func (n Name) String() string { return n.uri().String() }

func (n Name) uri() *url.URL {
	return &url.URL{Scheme: "mpiv", Host: n.Job, Path: fmt.Sprintf("/%s/%d", n.Role, n.Index)}
}

// parseName is the inverse of Name.String, of no other text.
func parseName(u *url.URL) (n Name, err error) {
	parts := strings.Split(u.Path, "/")
	if len(parts) != 3 {
		return n, fmt.Errorf("%q names no member of a job", u)
	}
	index, err := strconv.Atoi(parts[2])
	n = Name{Job: u.Host, Role: Role(parts[1]), Index: index}
	if err != nil || index < 0 || n.Role != Agent && n.Role != Process && n.Role != Front || n.String() != u.String() {
		return Name{}, fmt.Errorf("%q names no member of a job", u)
	}
	return n, nil
}

// What Verify refuses with, for errors.Is.
var (
	ErrStranger = errors.New("it has no certificate of this job")
	ErrFenced   = errors.New("it was declared dead, and another has taken its place")
)

// An Authority makes the certificates of one job. It ends with the job: its key
// is nowhere but in memory of agents.
type Authority struct {
	job  string
	key  ed25519.PrivateKey
	cert *x509.Certificate
}

// Certificates do not expire before their job does, so that hosts whose clocks
// differ can meet. The authority's key is gone when the job is.
var notBefore, notAfter = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// NewAuthority makes the authority of a job, whose name has nothing that a URI's
// host cannot have.
func NewAuthority(job string) (*Authority, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the job's authority: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mpiv job " + job},
		NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert, err := sign(template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("make the job's authority: %w", err)
	}
	return &Authority{job: job, key: key, cert: cert}, nil
}

func sign(template, parent *x509.Certificate, public ed25519.PublicKey, key ed25519.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Secret is all of the authority, for another agent of the job that may have to issue
// certificates one day. Who has it can be anybody in the job.
func (a *Authority) Secret() Secret {
	return Secret{Job: a.job, Certificate: a.cert.Raw, Seed: a.key.Seed()}
}

// A Secret is an authority on its way.
type Secret struct {
	Job         string
	Certificate []byte // DER
	Seed        []byte // its private key, 32 bytes
}

// Open is the inverse of Authority.Secret.
func (s Secret) Open() (*Authority, error) {
	cert, err := x509.ParseCertificate(s.Certificate)
	if err != nil {
		return nil, fmt.Errorf("the job's authority: %w", err)
	}
	if len(s.Seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("the job's authority: a key of %d bytes, want %d", len(s.Seed), ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(s.Seed)
	if !key.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return nil, errors.New("the job's authority: the certificate is for another key")
	}
	return &Authority{job: s.Job, key: key, cert: cert}, nil
}

// Issue makes a member's credentials.
func (a *Authority) Issue(role Role, index int) (Credentials, error) {
	name := Name{Job: a.job, Role: role, Index: index}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("make the key of %v: %w", name, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Credentials{}, fmt.Errorf("make the certificate of %v: %w", name, err)
	}
	cert, err := sign(&x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name.String()},
		NotBefore: notBefore, NotAfter: notAfter, URIs: []*url.URL{name.uri()},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, public, a.key)
	if err != nil {
		return Credentials{}, fmt.Errorf("make the certificate of %v: %w", name, err)
	}
	return Credentials{Authority: a.cert.Raw, Certificate: cert.Raw, Seed: key.Seed()}, nil
}

// Credentials are what a member is handed, through a pipe or socket that no
// other can read. Seed is secret.
type Credentials struct {
	Authority   []byte // the job's certificate, DER
	Certificate []byte // the member's, DER
	Seed        []byte // its private key, 32 bytes
}

// An Identity is one member's own: what it shows to others, and what it accepts
// of them. All methods may be called by any goroutine.
type Identity struct {
	name      Name
	authority *x509.CertPool
	own       tls.Certificate

	mu     sync.Mutex // guards fenced
	fenced map[Name]bool
}

// Open readies credentials for use.
func (c Credentials) Open() (*Identity, error) {
	authority, err := x509.ParseCertificate(c.Authority)
	if err != nil {
		return nil, fmt.Errorf("credentials: the authority: %w", err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate)
	if err != nil {
		return nil, fmt.Errorf("credentials: the certificate: %w", err)
	}
	if len(c.Seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("credentials: a key of %d bytes, want %d", len(c.Seed), ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(c.Seed)
	if !key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return nil, errors.New("credentials: the certificate is for another key")
	}
	i := &Identity{
		authority: x509.NewCertPool(), fenced: map[Name]bool{},
		own: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
	}
	i.authority.AddCert(authority)
	if i.name, err = i.chain(leaf); err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return i, nil
}

// Name is whose identity this is.
func (i *Identity) Name() Name { return i.name }

// TLS is for both ends of connections: TLS 1.3, and nobody but members of the
// job. Who the peer is, Verify tells from its certificate.
func (i *Identity) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{i.own},
		ClientAuth:   tls.RequireAnyClientCert,
		// The name to expect is not a host's, and the chain has one link:
		// VerifyConnection looks at both.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return ErrStranger
			}
			_, err := i.Verify(s.PeerCertificates[0])
			return err
		},
		SessionTicketsDisabled:      true, // a resumed session would bypass a fence
		DynamicRecordSizingDisabled: true,
	}
}

// Verify tells whose certificate cert is. The error wraps ErrStranger or
// ErrFenced. That the peer has the key is for the handshake to show.
func (i *Identity) Verify(cert *x509.Certificate) (Name, error) {
	name, err := i.chain(cert)
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrStranger, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fenced[name] {
		return Name{}, fmt.Errorf("%v: %w", name, ErrFenced)
	}
	return name, nil
}

// chain checks that the job's authority has signed cert, and for whom.
func (i *Identity) chain(cert *x509.Certificate) (Name, error) {
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: i.authority, CurrentTime: notBefore.AddDate(1, 0, 0), // whatever the clock here says
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return Name{}, err
	}
	if cert.IsCA || len(cert.URIs) != 1 {
		return Name{}, errors.New("the certificate is not a member's")
	}
	return parseName(cert.URIs[0])
}

// Fence has a member refused from now on.
// Connections that it has are for their owner to close.
func (i *Identity) Fence(n Name) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fenced[n] = true
}
