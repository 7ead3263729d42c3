package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// tokenFlags are the flags of a process that joins with a token.
type tokenFlags struct{ token, file string }

func (f *tokenFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.token, "token", "", "join token for a machine without a certificate (`rowraft token create`); other users of the machine see it in the list of processes")
	fl.StringVar(&f.file, "token-file", "", "file that holds the join token")
}

func (f *tokenFlags) given() bool { return f.token != "" || f.file != "" }

func (f *tokenFlags) read() (*certs.Token, error) {
	text := f.token
	if f.file != "" {
		if f.token != "" {
			return nil, cli.Usagef("--token together with --token-file: want one of them")
		}
		raw, err := os.ReadFile(f.file)
		if err != nil {
			return nil, cli.Usagef("--token-file: %w", err)
		}
		text = string(raw)
	}
	return certs.ParseToken(strings.TrimSpace(text))
}

// join requests the certificate of files with the token, unless the file exists.
func (f *tokenFlags) join(ctx context.Context, addrs []string, files rpc.TLSFiles, name string, hosts []string) (did bool, err error) {
	if _, err := os.Stat(files.Cert); err == nil {
		return false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, cli.Usagef("certificate: %w", err)
	}
	token, err := f.read()
	if err != nil {
		return false, err
	}
	return true, rpc.Join(ctx, addrs, token, files, name, hosts)
}

func newCertJoinCmd(g *globals) *cobra.Command {
	var f tokenFlags
	var out, name string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Get a certificate from the cluster by a token",
		Long: `Get a certificate from the cluster by a token: make a key, which stays here, ask a server with a scheduler and --ca-key
for a certificate, and write OUT.key, OUT.pem and ca.pem beside them, readable by their owner only. The server must show
the CA whose fingerprint is in the token, else it is told nothing.

Servers do this by themselves: ` + "`rowraft server --token …`" + `.`,
		Example: `  rowraft cert join --token-file token --endpoints 10.0.0.1:7070,10.0.0.2:7070 --certs certs --host 10.0.0.9`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out = cmp.Or(out, filepath.Join(cmp.Or(g.certs, "certs"), "client"))
			if !f.given() {
				return cli.Usagef("cert join: give --token or --token-file; an admin makes one with `rowraft token create`")
			}
			files := rpc.TLSFiles{Cert: out + ".pem", Key: out + ".key", CA: filepath.Join(filepath.Dir(out), "ca.pem")}
			ctx, cancel := g.withTimeout(cmd)
			defer cancel()
			did, err := f.join(ctx, g.endpoints, files, name, hosts)
			if err != nil {
				return err
			}
			if !did {
				return cli.Usagef("%s is there already: `rowraft cert renew` renews it", files.Cert)
			}
			return g.showCert(cmd, files.Cert)
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "path of the files without .pem and .key; default: CERTS/client")
	cmd.Flags().StringVar(&name, "name", "", "who it is; default: as the token says")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "addresses and names at which it listens: trainers that average, --metrics-listen")
	return cmd
}

func newCertRenewCmd(g *globals) *cobra.Command {
	now := false
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Renew a certificate by itself",
		Long: `Renew the certificate of --certs or --cert with the scheduler's leader, which must have been started with --ca-key: for the
same key and owner, valid for as long as the old one was. Before two thirds of its time are over nothing is done, so that a
timer can run it every day. Processes read it again by themselves; servers started with --token or --renew-cert do all of this
by themselves. One that has expired is not renewed: join again.`,
		Example: `  rowraft cert renew --certs certs --endpoints 10.0.0.1:7070`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.certsOf("client"); err != nil {
				return err
			}
			old, err := certs.ReadCertificate(g.tls.Cert)
			if err != nil {
				return err
			}
			if certs.DueForRenewal(old, time.Now()) || now {
				err := g.callCertificates(cmd, func(ctx context.Context, c rowraftv1.CertificatesClient) error {
					reply, err := c.RenewCertificate(ctx, &rowraftv1.RenewCertificateRequest{})
					if err != nil {
						return err
					}
					return g.tls.Keep(reply.GetCertificate(), reply.GetCa())
				})
				if err != nil {
					return err
				}
			}
			return g.showCert(cmd, g.tls.Cert)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "renew it whenever it ends")
	return cmd
}

func (g *globals) showCert(cmd *cobra.Command, path string) error {
	cert, err := certs.ReadCertificate(path)
	if err != nil {
		return err
	}
	v := viewOf(cert, path)
	return cli.Show(cmd.OutOrStdout(), g.output, v, func(w io.Writer, _ bool) error { return printCerts(w, []certView{v}) })
}

// joinCluster requests the server's certificate if it has none and a token was given.
func (f *serverFlags) joinCluster(ctx context.Context, g *globals, logger *slog.Logger, addrs ...net.Addr) error {
	if !f.tokens.given() {
		if _, err := os.Stat(g.tls.Cert); g.certs != "" && err != nil {
			return cli.Hint(cli.Usagef("--certs: %w", err), "`rowraft cert lab --dir "+g.certs+"` makes the certificates for a cluster on this machine; a machine that joins another one gets its own with --token")
		}
		return nil
	}
	if g.insecure {
		return cli.Usagef("--token together with --insecure: a cluster in plaintext lets in everybody")
	}
	f.renewCert = true
	if g.tls.IsZero() {
		return cli.Usagef("--token: say with --certs DIR where the certificate is to be kept")
	}
	var hosts []string
	note := func(addr string) {
		if host, _, err := net.SplitHostPort(addr); err == nil && host != "" && !net.ParseIP(host).IsUnspecified() && !slices.Contains(hosts, host) {
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
		return cli.Usagef("--token: say with --join whom to ask: servers with a scheduler and --ca-key")
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, joinNotice)
		did, err := f.tokens.join(attempt, f.join, g.tls, name, hosts)
		cancel()
		switch {
		case did && err == nil:
			logger.Info("this server has a certificate by its token", "cert", g.tls.Cert)
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil || rowraft.CodeOf(err) != rowraft.CodeDeadline:
			return fmt.Errorf("--token: %w", err)
		}
		logger.Warn("server not ready, nobody lets it join", "err", err)
	}
}

// joinNotice is the interval at which a server that waits to join logs the reason.
const joinNotice = 10 * time.Second
