package certs

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
)

// Files are the paths of PEM files: this side's certificate and key, and the CA of the peer. All empty
// means plaintext, which only loopback addresses may use.
type Files struct{ Cert, Key, CA string }

func (f Files) IsZero() bool { return f == Files{} }

// Open reads the files. It returns nil for plaintext.
//
// Errors: CodeInvalidArgument.
func (f Files) Open(log *slog.Logger) (*Source, error) {
	if f.IsZero() {
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "TLS needs all of --cert, --key and --cacert")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{files: f, log: log}
	s.seen = s.stamp()
	var err error
	s.now, err = f.load()
	return s, err
}

// Source holds the last complete content of the files. Safe for concurrent use.
type Source struct {
	files Files
	log   *slog.Logger

	refused atomic.Int64 // Unix ns of the last log of LogRefused

	mu   sync.Mutex
	seen stamp // the stamp of the files at the last check
	now  *material
}

// material is the content of the files that a handshake uses.
type material struct {
	cert tls.Certificate
	pool *x509.CertPool
	ca   []byte // content of the CA file, PEM
	id   Identity
}

// stamp detects changes of the files.
type stamp [3]struct {
	size int64
	time time.Time
}

func (s *Source) stamp() (out stamp) {
	for i, path := range []string{s.files.Cert, s.files.Key, s.files.CA} {
		if info, err := os.Stat(path); err == nil { // a missing file has zeros
			out[i].size, out[i].time = info.Size(), info.ModTime()
		}
	}
	return out
}

func (f Files) load() (*material, error) {
	bad := func(format string, args ...any) (*material, error) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	m := &material{pool: x509.NewCertPool()}
	var err error
	if m.cert, err = tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
		return bad("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return bad("CA certificate: %w", err)
	}
	if m.ca = pem; !m.pool.AppendCertsFromPEM(pem) {
		return bad("CA certificate %s holds no PEM certificate", f.CA)
	}
	if m.id, err = Of(m.cert.Leaf); err != nil {
		return bad("certificate %s: %w", f.Cert, err)
	}
	return m, nil
}

// current reads the files again if they have changed, and returns the present material.
func (s *Source) current() *material {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp := s.stamp()
	if stamp == s.seen {
		return s.now
	}
	s.seen = stamp
	next, err := s.files.load()
	switch {
	case err != nil:
	case next.id.Cluster != s.now.id.Cluster || next.id.Role != s.now.id.Role:
		err = rowraft.Errorf(rowraft.CodeInvalidArgument,
			"it belongs to %s in cluster %s, but this process started as %s in %s: restart the process to change its identity",
			&next.id, next.id.Cluster, &s.now.id, s.now.id.Cluster)
	case time.Now().After(next.cert.Leaf.NotAfter):
		err = rowraft.Errorf(rowraft.CodeInvalidArgument, "it expired at %s", next.cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	if err != nil {
		s.log.Error("the new certificate is not used, the old one stays", "cert", s.files.Cert, "err", err)
		return s.now
	}
	s.now = next
	s.log.Info("certificate reloaded", "cert", s.files.Cert, "identity", next.id.String(), "expires",
		next.cert.Leaf.NotAfter)
	return next
}

// Identity returns the identity of this side.
func (s *Source) Identity() Identity { return s.current().id }

// Leaf returns this side's certificate.
func (s *Source) Leaf() *x509.Certificate { return s.current().cert.Leaf }

// NotAfter returns the expiry time of this side's certificate.
func (s *Source) NotAfter() time.Time { return s.current().cert.Leaf.NotAfter }

// CA returns the content of the CA file, PEM.
func (s *Source) CA() []byte { return s.current().ca }

// Entrance returns the configuration for a joining client. The client has no certificate; the server shows
// its CA, and the client checks the fingerprint.
func (s *Source) Entrance() *tls.Config {
	m := s.current()
	chain := m.cert
	chain.Certificate = slices.Clone(chain.Certificate)
	for _, ca := range parseAll(m.ca) {
		chain.Certificate = append(chain.Certificate, ca.Raw)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{chain},
		SessionTicketsDisabled: true, NextProtos: []string{JoinProtocol}}
}

// Server returns the configuration of a listener that accepts the given roles of its own cluster, all roles
// if none is given. It follows changes of the files.
func (s *Source) Server(accept ...Role) *tls.Config {
	conf := s.server(accept)
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.server(accept), nil }
	return conf
}

// Probed is Server, but also accepts clients without a certificate, for liveness probes. The caller decides
// what such a client may do.
func (s *Source) Probed() *tls.Config {
	one := func() *tls.Config {
		conf := s.server(nil)
		known := conf.VerifyConnection
		conf.ClientAuth = tls.VerifyClientCertIfGiven
		conf.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return nil
			}
			return known(cs)
		}
		return conf
	}
	conf := one()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return one(), nil }
	return conf
}

func (s *Source) server(accept []Role) *tls.Config {
	m := s.current()
	conf := m.config(accept)
	conf.ClientCAs, conf.ClientAuth = m.pool, tls.RequireAndVerifyClientCert
	return conf
}

// Client returns the configuration of one connection to a peer with one of the given roles.
func (s *Source) Client(expect ...Role) *tls.Config {
	m := s.current()
	conf := m.config(expect)
	conf.RootCAs = m.pool
	return conf
}

func (m *material) config(others []Role) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert}, SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error { return m.verify(cs, others) },
	}
}

// verify checks the identity of the peer. TLS has already verified its chain, its dates and its host.
func (m *material) verify(cs tls.ConnectionState, others []Role) error {
	if len(cs.PeerCertificates) == 0 {
		return rowraft.Errorf(rowraft.CodeDenied, "the peer has no certificate")
	}
	id, err := Of(cs.PeerCertificates[0])
	switch {
	case err != nil:
		return err
	case id.Cluster != m.id.Cluster:
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate of %s belongs to cluster %s, want %s",
			&id, id.Cluster, m.id.Cluster)
	case len(others) > 0 && !slices.Contains(others, id.Role):
		return rowraft.Errorf(rowraft.CodeDenied, "the certificate belongs to %s: want a %s here", &id, Join(others))
	case len(others) > 0 && id.Role == Trainer && m.id.Role == Trainer && id.Name != m.id.Name: // a trainer of another job
		return rowraft.Errorf(rowraft.CodeDenied,
			"the certificate belongs to %s, but this side is %s: all workers of a job must have the same name", &id, &m.id)
	}
	return nil
}

// Join lists roles for a message.
func Join(roles []Role) string {
	out := ""
	for i, r := range roles {
		switch {
		case i == 0:
		case i == len(roles)-1:
			out += " or "
		default:
			out += ", "
		}
		out += string(r)
	}
	return out
}
