package node

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// expiresSoon is how long before its certificate ends a server says so in its log.
const expiresSoon = 14 * 24 * time.Hour

// openCerts reads the server's certificates; nil for plaintext.
//
// Errors: CodeInvalidArgument, also for the certificate of somebody who is no node.
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

// peerTLS puts TLS between nodes, and nobody else, onto the peer port and its dials.
func peerTLS(l net.Listener, source *certs.Source) (net.Listener, func() *tls.Config) {
	if source == nil {
		return l, nil
	}
	return tls.NewListener(l, source.Server(certs.Node)), func() *tls.Config { return source.Client(certs.Node) }
}

// profilers are who may look into a process; everybody in the cluster may read its
// metrics and whether it is ready.
var profilers = []certs.Role{certs.Admin, certs.Operator}

// opsRoles refuses what a certificate does not allow on the ops port.
func opsRoles(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && strings.HasPrefix(r.URL.Path, "/debug/") {
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

// mayTouch refuses segments of tables that are not those of who calls. A segment that
// is none is left to who reads it.
func (r *replica) mayTouch(ctx context.Context, segments []byte) error {
	caller := rpc.CallerOf(ctx)
	if !caller.Limited() {
		return nil
	}
	for len(segments) > 0 {
		seg, _, rest, err := wire.ParseSegment(segments)
		if err != nil {
			return err
		}
		if err := r.mayTouchTable(caller, seg.Table); err != nil {
			return err
		}
		segments = rest
	}
	return nil
}

// mayTouchTable refuses a table that is not the caller's; of one that is not there,
// whoever looks for it says so.
func (r *replica) mayTouchTable(caller *rpc.Caller, id rowraft.TableID) error {
	if !caller.Limited() {
		return nil
	}
	for _, t := range r.machine.Tables() {
		if t.ID == id {
			return caller.CheckTable(t.Name)
		}
	}
	return nil
}
