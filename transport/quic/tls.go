package quic

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"time"
)

// protocol is what both ends say they speak.
const protocol = "mpiv/1"

// tlsConfig is own, or one under which anybody meets anybody.
func tlsConfig(own *tls.Config) (*tls.Config, error) {
	if own != nil {
		own = own.Clone()
		own.NextProtos = []string{protocol}
		return own, nil
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		InsecureSkipVerify:     true, // that the secret is known is what counts
		NextProtos:             []string{protocol},
		SessionTicketsDisabled: true,
	}, nil
}
