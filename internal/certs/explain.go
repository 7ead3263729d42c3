package certs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
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
	if id.Role == Server {
		return "make a new one, `rowraft cert server` where the CA's key is, and put it in its place"
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
		return denied("%s %s, of %s in cluster %s, signed by %s: %w; it wants one of a CA that it knows, and of its own "+
			"cluster: get a certificate from the CA of the server's cluster", refusedByServer, s.files.Cert, &m.id, m.id.Cluster,
			issuerOf(m.cert.Leaf), op.Err)
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
		return denied("the server's certificate, of %s, %s %s, which has %s, but by %s: is it a server of cluster %s? Both "+
			"sides need certificates of one CA, or ca.pem files with both CAs", ownerOf(unknown.Cert), strangeServer,
			s.files.CA, s.authorities(), issuerOf(unknown.Cert), m.id.Cluster)
	}
	return err
}

// Parts of the messages of Explain. gRPC keeps only the text of the error of a handshake.
const (
	refusedByServer = "the server refuses this side's certificate"
	strangeServer   = "is not signed by a CA in"
)

// IsUntrusted reports whether the text of an error is of a handshake in which one side does not trust the CA of the
// other.
func IsUntrusted(text string) bool {
	return strings.Contains(text, refusedByServer) || strings.Contains(text, strangeServer)
}

// authorities describes the CAs that this side trusts.
func (s *Source) authorities() string {
	var out []string
	for rest := s.current().ca; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if ca, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, authority(ca.Subject, ca.SubjectKeyId))
		}
	}
	return strings.Join(out, ", ")
}

// issuerOf describes the CA that signed a certificate.
func issuerOf(cert *x509.Certificate) string {
	if cert == nil {
		return "an unknown CA"
	}
	return authority(cert.Issuer, cert.AuthorityKeyId)
}

// authority describes a CA. CAs of two clusters often have the same name, so it has the beginning of the key's id.
func authority(name pkix.Name, key []byte) string {
	return fmt.Sprintf("CA %q (key %x)", name.CommonName, key[:min(8, len(key))])
}

// pause is the least time between two logs of refused connections.
const pause = 10 * time.Second

// LogRefused logs that a handshake of a server failed because one side does not trust the CA of the other. It does not
// log other errors, which are those of the caller.
func (s *Source) LogRefused(remote net.Addr, err error) {
	unknown, strange := errors.AsType[x509.UnknownAuthorityError](err)
	op, alert := errors.AsType[*net.OpError](err)
	if alert {
		text := op.Err.Error()
		alert = op.Op == "remote error" && (strings.Contains(text, "unknown certificate authority") ||
			strings.Contains(text, "bad certificate"))
	}
	now := time.Now().UnixNano()
	last := s.refused.Load()
	// A client in Go sends no certificate if it has none of a CA that the server names.
	none := strings.Contains(err.Error(), "client didn't provide a certificate")
	if !strange && !alert && !none || now-last < int64(pause) && last != 0 || !s.refused.CompareAndSwap(last, now) {
		return
	}
	refused := func(what, why string, args ...any) {
		s.log.Warn(what, "remote", remote.String(), "why", fmt.Sprintf(why, args...))
	}
	if alert {
		refused("a caller does not trust this server", "its ca.pem lacks %s, which signed this server's certificate: put "+
			"that CA into it, if the caller belongs to this cluster", issuerOf(s.current().cert.Leaf))
		return
	}
	has := "it has none"
	if strange {
		has = fmt.Sprintf("it has that of %s, signed by %s", ownerOf(unknown.Cert), issuerOf(unknown.Cert))
	}
	refused("a caller is refused: it has no certificate of a CA that this server trusts", "%s; this server trusts %s: "+
		"give the caller a certificate of such a CA, or add its CA to %s", has, s.authorities(), s.files.CA)
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
