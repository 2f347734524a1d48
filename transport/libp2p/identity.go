package libp2p

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"
)

var errCertificate = errors.New("not the certificate of this job")

// identity is the host's key, and the certificate that belongs to it.
func identity(own *tls.Config) (crypto.PrivKey, []byte, error) {
	if own == nil {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		return key, nil, err
	}
	if len(own.Certificates) != 1 || len(own.Certificates[0].Certificate) != 1 || own.VerifyConnection == nil {
		return nil, nil, errors.New("the TLS configuration needs one certificate without a chain, and VerifyConnection")
	}
	std, ok := own.Certificates[0].PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("a key of type %T: it must be an ed25519.PrivateKey", own.Certificates[0].PrivateKey)
	}
	key, _, err := crypto.KeyPairFromStdKey(&std)
	return key, own.Certificates[0].Certificate[0], err
}

// verify is the certificate that a peer has shown, whose key libp2p knows it
// has. The error wraps errCertificate.
func (e *Endpoint) verify(der []byte, has crypto.PubKey) (*x509.Certificate, error) {
	if e.opt.TLS == nil {
		if len(der) > 0 {
			return nil, fmt.Errorf("%w: here nobody shows one", errCertificate)
		}
		return nil, nil
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCertificate, err)
	}
	key, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok || has == nil {
		return nil, fmt.Errorf("%w: it is not for an ed25519 key", errCertificate)
	}
	raw, err := has.Raw()
	if err != nil || has.Type() != crypto.Ed25519 || !bytes.Equal(raw, key) {
		return nil, fmt.Errorf("%w: it is for another key than the peer's", errCertificate)
	}
	if err := e.opt.TLS.VerifyConnection(tls.ConnectionState{
		Version: tls.VersionTLS13, HandshakeComplete: true, PeerCertificates: []*x509.Certificate{cert},
	}); err != nil {
		return nil, fmt.Errorf("%w: %w", errCertificate, err)
	}
	return cert, nil
}
