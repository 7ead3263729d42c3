package node

import (
	"context"
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
	"github.com/rowraft/rowraft/wire"
)

// expiresSoon is how long before the end of its certificate a server begins to log a warning.
const expiresSoon = 14 * 24 * time.Hour

// openCerts opens the server's certificates; nil for plaintext.
//
// Errors: CodeInvalidArgument, also for a certificate that is not of a node.
func openCerts(cfg *Config) (*certs.Source, error) {
	source, err := cfg.TLS.Open(cfg.Logger)
	if source == nil || err != nil {
		return nil, err
	}
	if id := source.Identity(); id.Role != certs.Node {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the certificate %s is of %s: a server wants the role node (`rowraft cert node`)", cfg.TLS.Cert, id.String())
	}
	if left := time.Until(source.NotAfter()); left < expiresSoon {
		cfg.Logger.Warn("the certificate of this server expires soon, or has: replace its files, no restart is needed", "cert", cfg.TLS.Cert, "expires", source.NotAfter())
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
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "--ca-key is for servers with a scheduler and certificates: the others sign nothing")
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
	return tls.NewListener(l, source.Server(certs.Node)), func() *tls.Config { return source.Client(certs.Node) }
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
				denied := rowraft.DeniedError{What: "this page", Need: certs.Join(certs.Roles), Have: "nobody: there is no certificate"}
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

// mayTouch refuses segments of tables that the caller's certificate does not allow. It passes a
// table that this replica does not know, and a malformed segment: the read itself refuses those.
// A caller of mayTouch that waits before it reads calls mayTouch again, because the table may have
// been created meanwhile.
func (r *replica) mayTouch(ctx context.Context, segments []byte) error {
	_, err := r.tablesOf(ctx, segments)
	return err
}

// mayChange is mayTouch for segments that may be logged. Apply checks no identity, and a table
// that is unknown now may exist when the entry is applied. So mayChange refuses a table that is
// unknown in the newest state.
func (r *replica) mayChange(ctx context.Context, segments []byte) error {
	unknown, err := r.tablesOf(ctx, segments)
	if err != nil || unknown == 0 {
		return err
	}
	if err := r.mustServe(); err != nil {
		return err
	}
	if err := r.confirm(ctx); err != nil {
		return err
	}
	if unknown, err = r.tablesOf(ctx, segments); err == nil && unknown != 0 {
		err = rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", r.shard, uint64(unknown))
	}
	return err
}

// tablesOf refuses segments of tables that the caller's certificate does not allow. If the caller
// is limited to some tables, it returns one that this replica does not know, or 0.
func (r *replica) tablesOf(ctx context.Context, segments []byte) (unknown rowraft.TableID, err error) {
	caller := rpc.CallerOf(ctx)
	if !caller.Limited() {
		return 0, nil
	}
	for len(segments) > 0 {
		seg, _, rest, err := wire.ParseSegment(segments)
		if err != nil {
			return 0, err
		}
		known, err := r.mayTouchTable(caller, seg.Table)
		if err != nil {
			return 0, err
		}
		if !known {
			unknown = seg.Table
		}
		segments = rest
	}
	return unknown, nil
}

// mayTouchTable refuses a table that the caller's certificate does not allow. known is false for
// a table that this replica does not know; the read itself reports that.
func (r *replica) mayTouchTable(caller *rpc.Caller, id rowraft.TableID) (known bool, err error) {
	if !caller.Limited() {
		return true, nil
	}
	t, known := r.machine.Table(id)
	if !known {
		return false, nil
	}
	return true, caller.CheckTable(t.Name)
}
