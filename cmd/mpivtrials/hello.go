//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
)

// clientHello is what a TLS client says first, record and all.
func clientHello() ([]byte, error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	done := make(chan error, 1)
	go func() {
		done <- tls.Client(a, &tls.Config{ServerName: "mpiv", MinVersion: tls.VersionTLS13}).Handshake()
	}()
	buf := make([]byte, 8192)
	n, err := b.Read(buf)
	b.Close()
	<-done // an error: nobody answers
	return buf[:n], err
}

// quicHello is what a QUIC client puts into its first CRYPTO frame.
func quicHello() ([]byte, error) {
	q := tls.QUICClient(&tls.QUICConfig{TLSConfig: &tls.Config{ServerName: "mpiv", MinVersion: tls.VersionTLS13, NextProtos: []string{"mpiv"}}})
	defer q.Close()
	q.SetTransportParameters([]byte{0x01, 0x02, 0x67, 0x10}) // max_idle_timeout: 10 s
	if err := q.Start(context.Background()); err != nil {
		return nil, err
	}
	for {
		switch e := q.NextEvent(); e.Kind {
		case tls.QUICWriteData:
			return e.Data, nil
		case tls.QUICNoEvent:
			return nil, errors.New("crypto/tls wrote no ClientHello")
		}
	}
}
