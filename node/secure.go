package node

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// expiresSoon is how long before the end of its certificate a server begins to log a warning.
const expiresSoon = 14 * 24 * time.Hour

// openCerts opens the server's certificates; nil for plaintext.
//
// Errors: CodeInvalidArgument, also for a certificate that is not of a server.
func openCerts(cfg *Config) (*certs.Source, error) {
	source, err := cfg.TLS.Open(cfg.Logger)
	if source == nil || err != nil {
		return nil, err
	}
	if id := source.Identity(); id.Role != certs.Server {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the certificate %s is of %s: a server wants the role server (`rowraft cert server`)", cfg.TLS.Cert, id.String())
	}
	if left := time.Until(source.NotAfter()); left < expiresSoon {
		cfg.Logger.Warn("the certificate of this server expires soon, or has: replace its files, no restart is needed",
			"cert", cfg.TLS.Cert, "expires", source.NotAfter())
	}
	return source, nil
}

// openCA reads the key that signs certificates for machines with join tokens; nil: this server has none.
//
// Errors: CodeInvalidArgument.
func openCA(cfg *Config) (*certs.CA, error) {
	if cfg.CAKey == "" {
		return nil, nil
	}
	if cfg.TLS.IsZero() || !cfg.WithScheduler {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"--ca-key is for servers with a scheduler and certificates: the others sign nothing")
	}
	return certs.OpenKey(cfg.CAKey, cfg.TLS.CA)
}

// openEntrance, if this server can sign, serves machines without a certificate: they can request one, and
// nothing else. It returns the options that the services' server needs for it.
func (n *Node) openEntrance(source *certs.Source) []grpc.ServerOption {
	if n.cfg.CAKey == "" {
		return nil
	}
	e := rpc.NewEntrance(n.cfg.Listener.Addr())
	n.entrance = grpc.NewServer(e.Options()...)
	rowraftv1.RegisterEntranceServer(n.entrance, n.sched.Certificates())
	go n.entrance.Serve(e.Listener()) // ends in stopServing
	return []grpc.ServerOption{e.Credentials(source)}
}

// peerTLS adds TLS to the peer port and its dials, and accepts only nodes.
func peerTLS(l net.Listener, source *certs.Source) (net.Listener, func() *tls.Config) {
	if source == nil {
		return l, nil
	}
	return certs.NewListener(l, source.Server(certs.Server)), func() *tls.Config { return source.Client(certs.Server) }
}

// profilers are the roles that may read profiles. Every role of the cluster may read metrics and readiness.
var profilers = []certs.Role{certs.Admin, certs.Operator}

// probes are the paths for clients without a certificate: a kubelet cannot present one.
var probes = []string{"/livez", "/readyz"}

// opsConnKey is the context key of the connection of a request to the ops port.
type opsConnKey struct{}

// opsRoles refuses requests to the ops port that the caller's certificate does not allow. A client without
// a certificate gets the status of a probe, without a body, and nothing else; then its connection is
// closed.
func opsRoles(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.TLS == nil: // plaintext is on loopback only
		case len(r.TLS.PeerCertificates) == 0:
			w.Header().Set("Connection", "close")
			if !slices.Contains(probes, r.URL.Path) {
				denied := rowraft.DeniedError{What: "this page", Need: certs.Join(certs.Roles),
					Have: "none: there is no certificate"}
				http.Error(w, denied.Error(), http.StatusForbidden)
				return
			}
			w = &mute{ResponseWriter: w}
		default:
			if c, ok := r.Context().Value(opsConnKey{}).(net.Conn); ok {
				quota.Authenticate(c)
			}
			if !strings.HasPrefix(r.URL.Path, "/debug/") {
				break
			}
			id, err := certs.Of(r.TLS.PeerCertificates[0])
			if err != nil || !slices.Contains(profilers, id.Role) {
				denied := rowraft.DeniedError{What: r.URL.Path, Need: certs.Join(profilers), Have: id.String()}
				http.Error(w, denied.Error(), http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// mute passes on the status of a response, without its body.
type mute struct{ http.ResponseWriter }

func (m *mute) Write(b []byte) (int, error) { return len(b), nil }
