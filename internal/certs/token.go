package certs

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/rowraft/rowraft"
)

// JoinProtocol is what a client without a certificate names in its TLS hello, and
// nothing else (docs/formats/join-token.md).
const JoinProtocol = "rowraft-join"

const (
	tokenPrefix  = "rowraft-join-"
	tokenVersion = "1"
	tokenIDBytes = 8
)

// Token lets a machine without a certificate have one. Whoever has it may.
type Token struct {
	ID     string // 16 hexadecimal digits; no secret
	Secret [16]byte
	CA     [sha256.Size]byte // fingerprint of the CA of the servers that may be told the secret
}

// NewToken draws a token for a cluster of a CA.
func NewToken(ca *x509.Certificate) (*Token, error) {
	t := &Token{CA: Fingerprint(ca)}
	var id [tokenIDBytes]byte
	for _, b := range [][]byte{id[:], t.Secret[:]} {
		if _, err := rand.Read(b); err != nil {
			return nil, rowraft.Errorf(rowraft.CodeInternal, "draw a token: %w", err)
		}
	}
	t.ID = hex.EncodeToString(id[:])
	return t, nil
}

// Fingerprint is the SHA-256 of a certificate's public key.
func Fingerprint(cert *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo)
}

// ParseToken reads a token as String writes it. What is wrong is told without the secret.
//
// Errors: CodeInvalidArgument; CodeVersionTooNew.
func ParseToken(s string) (*Token, error) {
	bad := func(why string) (*Token, error) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the token %s: want %s%s.ID.SECRET.CA, as `rowraft token create` printed it", why, tokenPrefix, tokenVersion)
	}
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	parts := strings.Split(rest, ".")
	switch {
	case !ok || len(s) > 256:
		return bad("does not begin as one")
	case parts[0] != tokenVersion:
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "the token is of version %.8q, this binary knows %s", parts[0], tokenVersion)
	case len(parts) != 4:
		return bad(fmt.Sprintf("has %d parts", len(parts)))
	case !IsTokenID(parts[1]):
		return bad("has a damaged id")
	}
	t := &Token{ID: parts[1]}
	for i, into := range [][]byte{t.Secret[:], t.CA[:]} {
		if b, err := hex.DecodeString(parts[2+i]); err != nil || copy(into, b) != len(into) || len(b) != len(into) || strings.ToLower(parts[2+i]) != parts[2+i] {
			return bad("is damaged")
		}
	}
	return t, nil
}

// String is the token as a person hands it on, secret included.
func (t *Token) String() string {
	return fmt.Sprintf("%s%s.%s.%x.%x", tokenPrefix, tokenVersion, t.ID, t.Secret, t.CA)
}

// IsTokenID reports whether id can be that of a token.
func IsTokenID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == tokenIDBytes && strings.ToLower(id) == id
}

// TokenHash is what the cluster keeps of a secret. That has 128 random bits, so one
// round is enough.
func TokenHash(id string, secret []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("rowraft join token\x00"+id+"\x00"), secret...))
}

// Client is the configuration of a machine that joins through the server at host: it
// has no certificate, and believes a node of the token's CA and nobody else.
func (t *Token) Client(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{JoinProtocol}, ServerName: host,
		// The CA is known by its fingerprint only, and comes with the chain: verify does it all.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return t.verify(cs.PeerCertificates, host) },
	}
}

func (t *Token) verify(chain []*x509.Certificate, host string) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range chain {
		if c.IsCA && Fingerprint(c) == t.CA {
			roots.AddCert(c)
			found = true
		} else {
			between.AddCert(c)
		}
	}
	if !found {
		return rowraft.Errorf(rowraft.CodeDenied, "the server at %s is not of the cluster that the token is for: it shows no CA with the fingerprint %x; nothing was sent to it", host, t.CA)
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if _, err := chain[0].Verify(opts); err != nil {
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate of the server at %s: %w", host, err)
	}
	id, err := Of(chain[0])
	if err == nil && id.Role != Node {
		err = rowraft.Errorf(rowraft.CodeDenied, "the certificate of the server at %s is of %s: want a node", host, &id)
	}
	return err
}
