package certs

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/rowraft/rowraft"
)

// OpenToCall is Open for a client. It refuses a certificate that no server would accept now: the error of a
// handshake comes later and says less.
func (f Files) OpenToCall(log *slog.Logger) (*Source, error) {
	s, err := f.Open(log)
	if s == nil || err != nil {
		return nil, err
	}
	return s, s.checkTime()
}

// checkTime refuses this side's certificate if no server would accept it now.
func (s *Source) checkTime() error {
	m := s.current()
	now := time.Now()
	switch leaf := m.cert.Leaf; {
	case now.After(leaf.NotAfter):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"this side's certificate %s, of %s in cluster %s, expired at %s: %s",
			s.files.Cert, &m.id, m.id.Cluster, leaf.NotAfter.UTC().Format(time.RFC3339), m.id.newOne())
	case now.Before(leaf.NotBefore):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"this side's certificate %s, of %s in cluster %s, is not valid before %s, but the clock of this machine shows "+
				"%s: correct the clock of this machine, or of the machine that issued the certificate",
			s.files.Cert, &m.id, m.id.Cluster, leaf.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// newOne describes how the owner of an expired certificate gets a new one.
func (id *Identity) newOne() string {
	if id.Role == Node {
		return "make a new one, `rowraft cert node` where the CA's key is, and put it in its place"
	}
	return "it cannot be renewed any more; get a new one, `rowraft cert join` with a token or `rowraft cert client` " +
		"where the CA's key is (before the end `rowraft cert renew` does it)"
}

// Explain adds to an error of a handshake, or of the first read, which side's certificate is wrong and what
// to do. It returns other errors unchanged.
func (s *Source) Explain(err error) error {
	m := s.current()
	denied := func(format string, args ...any) error { return rowraft.Errorf(rowraft.CodeDenied, format, args...) }
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		if own := s.checkTime(); own != nil {
			return own
		}
		return denied("the server refuses this side's certificate %s, of %s in cluster %s: %w; it wants one of a CA that "+
			"it knows, and of its own cluster", s.files.Cert, &m.id, m.id.Cluster, op.Err)
	}
	if bad, ok := errors.AsType[x509.CertificateInvalidError](err); ok && bad.Reason == x509.Expired {
		now, leaf := time.Now(), bad.Cert
		if now.Before(leaf.NotBefore) {
			return denied("the server's certificate, of %s, is not valid before %s, and here it is %s: set the clock of "+
				"this machine, or of the server's",
				ownerOf(leaf), leaf.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		}
		return denied("the server's certificate, of %s, expired at %s: put a new one in its place there, no restart is "+
			"needed (runbook certificates-expire)", ownerOf(leaf), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return denied("the server's certificate, of %s, is not signed by a CA in %s, which this side goes by: is it a "+
			"server of cluster %s?", ownerOf(unknown.Cert), s.files.CA, m.id.Cluster)
	}
	return err
}

// ownerOf describes the owner of a certificate.
func ownerOf(cert *x509.Certificate) string {
	if cert == nil {
		return "an unknown owner"
	}
	if id, err := Of(cert); err == nil {
		return id.String() + " in cluster " + id.Cluster
	}
	return cert.Subject.CommonName
}
