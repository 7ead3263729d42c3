package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// joinCluster requests the server's certificate if it has none and a token was given.
func (f *serverFlags) joinCluster(ctx context.Context, g *remote.Flags, logger *slog.Logger, addrs ...net.Addr) error {
	if !f.tokens.Given() {
		if _, err := os.Stat(g.TLS.Cert); g.Certs != "" && err != nil {
			return cli.Hint(cli.Usagef("--certs: %w", err),
				"`rowraft cert lab --dir "+g.Certs+"` makes the certificates for a cluster on this machine; a machine that joins "+
					"another one gets its own with --token")
		}
		return nil
	}
	if g.Insecure {
		return cli.Usagef("--token together with --insecure: a cluster in plaintext checks no caller")
	}
	f.renewCert = true
	if g.TLS.IsZero() {
		return cli.Usagef("--token needs --certs DIR, the directory for the certificate")
	}
	var hosts []string
	note := func(addr string) {
		if host, _, err := net.SplitHostPort(addr); err == nil && host != "" && !net.ParseIP(host).IsUnspecified() &&
			!slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	for _, a := range addrs {
		note(a.String())
	}
	note(f.advertise)
	note(f.peerAdvertise)
	name := f.name
	if name == "" {
		name, _ = os.Hostname()
	}
	if len(f.join) == 0 {
		return cli.Usagef("--token needs --join: servers with a scheduler and --ca-key")
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, joinNotice)
		did, err := f.tokens.Join(attempt, f.join, g.TLS, name, hosts)
		cancel()
		switch {
		case did && err == nil:
			logger.Info("this server has a certificate by its token", "cert", g.TLS.Cert)
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil || rowraft.CodeOf(err) != rowraft.CodeDeadline:
			return fmt.Errorf("--token: %w", err)
		}
		logger.Warn("server not ready: no server has let it join yet", "err", err)
	}
}

// joinNotice is the interval at which a server that waits to join logs the reason.
const joinNotice = 10 * time.Second
