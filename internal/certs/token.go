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

// JoinProtocol is the only protocol that a client without a certificate names in its TLS hello
// (docs/formats/join-token.md).
const JoinProtocol = "rowraft-join"

const (
	tokenPrefix  = "rowraft-join-"
	tokenVersion = "1"
	tokenIDBytes = 8
)

// Token entitles a machine without a certificate to get one. Every machine that has the token may use it.
type Token struct {
	ID     string // 16 hexadecimal digits; no secret
	Secret [16]byte
	CA     [sha256.Size]byte // fingerprint of the CA of the servers to which the secret may be sent
}

// NewToken creates a random token for the cluster of a CA.
func NewToken(ca *x509.Certificate) (*Token, error) {
	t := &Token{CA: Fingerprint(ca)}
	var id [tokenIDBytes]byte
	for _, b := range [][]byte{id[:], t.Secret[:]} {
		if _, err := rand.Read(b); err != nil {
			return nil, rowraft.Errorf(rowraft.CodeInternal, "create a token: %w", err)
		}
	}
	t.ID = hex.EncodeToString(id[:])
	return t, nil
}

// Fingerprint returns the SHA-256 of a certificate's public key.
func Fingerprint(cert *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo)
}

// ParseToken parses the result of String. Its errors do not contain the secret.
func ParseToken(s string) (*Token, error) {
	bad := func(why string) (*Token, error) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the token %s: want %s%s.ID.SECRET.CA, as `rowraft token create` printed it", why, tokenPrefix, tokenVersion)
	}
	rest, ok := strings.CutPrefix(s, tokenPrefix)
	parts := strings.Split(rest, ".")
	switch {
	case !ok || len(s) > 256:
		return bad("does not begin as one")
	case parts[0] != tokenVersion:
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"the token has version %.8q, this binary understands %s: upgrade it", parts[0], tokenVersion)
	case len(parts) != 4:
		return bad(fmt.Sprintf("has %d parts", len(parts)))
	case !IsTokenID(parts[1]):
		return bad("has a damaged id")
	}
	t := &Token{ID: parts[1]}
	for i, into := range [][]byte{t.Secret[:], t.CA[:]} {
		if b, err := hex.DecodeString(parts[2+i]); err != nil || copy(into, b) != len(into) || len(b) != len(into) ||
			strings.ToLower(parts[2+i]) != parts[2+i] {
			return bad("is damaged")
		}
	}
	return t, nil
}

// String returns the token in the form that is given to a machine, with the secret.
func (t *Token) String() string {
	return fmt.Sprintf("%s%s.%s.%x.%x", tokenPrefix, tokenVersion, t.ID, t.Secret, t.CA)
}

// IsTokenID reports whether id is a possible token id.
func IsTokenID(id string) bool {
	b, err := hex.DecodeString(id)
	return err == nil && len(b) == tokenIDBytes && strings.ToLower(id) == id
}

// TokenHash is the hash of a secret that the cluster stores. The secret has 128 random bits, so one round
// is sufficient.
func TokenHash(id string, secret []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("rowraft join token\x00"+id+"\x00"), secret...))
}

// Client returns the configuration of a machine that joins through the server at host. The machine has no
// certificate, and trusts only a node of the token's CA.
func (t *Token) Client(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{JoinProtocol}, ServerName: host,
		// The machine knows only the fingerprint of the CA, and the CA comes with the chain: verify checks
		// everything.
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
		return rowraft.Errorf(rowraft.CodeDenied,
			"the server at %s does not belong to the cluster of the token: it shows no CA with the fingerprint %x; nothing "+
				"was sent to it", host, t.CA)
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if _, err := chain[0].Verify(opts); err != nil {
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate of the server at %s: %w", host, err)
	}
	id, err := Of(chain[0])
	if err == nil && id.Role != Server {
		err = rowraft.Errorf(rowraft.CodeDenied, "the certificate of the server at %s belongs to %s: want a server", host,
			&id)
	}
	return err
}
