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

// quicHello is what the QUIC client of a connection ID puts into its first CRYPTO frame.
// It fits into one datagram.
func quicHello(src [8]byte) ([]byte, error) {
	q := tls.QUICClient(&tls.QUICConfig{TLSConfig: &tls.Config{
		ServerName: "mpiv", MinVersion: tls.VersionTLS13, NextProtos: []string{"mpiv"}, CurvePreferences: []tls.CurveID{tls.X25519},
	}})
	defer q.Close()
	q.SetTransportParameters(append([]byte{0x0f, byte(len(src))}, src[:]...)) // initial_source_connection_id
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
