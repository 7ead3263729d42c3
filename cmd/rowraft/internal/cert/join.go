package cert

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TokenFlags are the flags of a process that joins with a token.
type TokenFlags struct{ token, file string }

func (f *TokenFlags) Register(fl *pflag.FlagSet) {
	fl.StringVar(&f.token, "token", "", "join token for a machine without a certificate ('rowraft token create'); other "+
		"users of the machine see it in the list of processes")
	fl.StringVar(&f.file, "token-file", "", "file that holds the join token")
}

func (f *TokenFlags) Given() bool { return f.token != "" || f.file != "" }

func (f *TokenFlags) read() (*certs.Token, error) {
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

// Join requests the certificate of files with the token, unless the file exists.
func (f *TokenFlags) Join(ctx context.Context, addrs []string, files rpc.TLSFiles, name string,
	hosts []string) (did bool, err error) {
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

func newCertJoinCmd(g *remote.Flags) *cobra.Command {
	var f TokenFlags
	var out, name string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Get a certificate from the cluster by a token",
		Long: `Get a certificate from the cluster by a token: make a key, which stays here, ask a server with a scheduler and --ca-key
for a certificate, and write OUT.key, OUT.pem and ca.pem in the same directory, readable by their owner only. The server must show
the CA whose fingerprint is in the token; to another one nothing is sent.

Servers do this by themselves: ` + "`rowraft server --token …`" + `.`,
		Example: `  rowraft cert join --token-file token --endpoints 10.0.0.1:7070,10.0.0.2:7070 --certs certs --host 10.0.0.9`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out = cmp.Or(out, filepath.Join(cmp.Or(g.Certs, "certs"), "client"))
			if !f.Given() {
				return cli.Usagef("cert join: give --token or --token-file; an admin makes one with `rowraft token create`")
			}
			files := rpc.TLSFiles{Cert: out + ".pem", Key: out + ".key", CA: filepath.Join(filepath.Dir(out), "ca.pem")}
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			did, err := f.Join(ctx, g.Endpoints, files, name, hosts)
			if err != nil {
				return err
			}
			if !did {
				return cli.Usagef("%s is there already: `rowraft cert renew` renews it", files.Cert)
			}
			return showCert(g, cmd, files.Cert)
		},
	}
	f.Register(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "path of the files without .pem and .key; default: CERTS/client")
	cmd.Flags().StringVar(&name, "name", "", "name of the owner; default: the name in the token")
	cmd.Flags().StringSliceVar(&hosts, "host", nil,
		"addresses and names at which it listens: trainers that average, --metrics-listen")
	return cmd
}

func newCertRenewCmd(g *remote.Flags) *cobra.Command {
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
			if err := g.UseCertsOf("client"); err != nil {
				return err
			}
			old, err := certs.ReadCertificate(g.TLS.Cert)
			if err != nil {
				return err
			}
			if certs.DueForRenewal(old, time.Now()) || now {
				reply, err := remote.Call(cmd.Context(), g, route.Once, rowraftv1.NewCertificatesClient,
					rowraftv1.CertificatesClient.RenewCertificate, &rowraftv1.RenewCertificateRequest{})
				if err != nil {
					return err
				}
				if err := g.TLS.Keep(reply.GetCertificate(), reply.GetCa()); err != nil {
					return err
				}
			}
			return showCert(g, cmd, g.TLS.Cert)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "renew it whenever it ends")
	return cmd
}

func showCert(g *remote.Flags, cmd *cobra.Command, path string) error {
	cert, err := certs.ReadCertificate(path)
	if err != nil {
		return err
	}
	v := viewOf(cert, path)
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		return printCerts(w, wide, []Certificate{v})
	})
}
