package cert

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
)

const (
	Day    = 24 * time.Hour
	caDays = 3650 // default life of a CA, in days
)

// certFlags are the flags of the commands that create certificates.
type certFlags struct {
	dir, cluster, out string
	days              int
	req               certs.Request
}

// NewCmd returns the command `rowraft cert`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert",
		Short: "Make and look at certificates, for a lab",
		Long: `Make a CA and the certificates that servers, trainers and people show each other. A certificate names
the cluster of its owner, its role, and the tables that a trainer or reader may use. Nothing is
overwritten; files are readable by their owner only. The owner of ca.key can make any certificate: keep the key off the
servers. A CA of your own works too: docs/formats/certificate.md describes the contents of a certificate.

Servers and clients read their files again when they change: to renew one, remove it and make it again.`,
		Example: `  rowraft cert lab --dir certs                  # all that a lab on this machine needs
  rowraft cert client --dir certs --role trainer --name alice --tables 'user,item_*' --out certs/alice`,
	}
	cmd.AddCommand(newCertLabCmd(g), newCertCACmd(g), newCertServerCmd(g), newCertClientCmd(g), newCertJoinCmd(g),
		newCertRenewCmd(g), newCertInspectCmd(g))
	return cmd
}

func (f *certFlags) flags(cmd *cobra.Command, days int) {
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "certs", "directory of the CA")
	fl.IntVar(&f.days, "days", days, "days until it expires")
}

func (f *certFlags) check() error {
	if f.days < 1 || f.days > 36500 {
		return cli.Usagef("--days %d: want 1 to 36500", f.days)
	}
	return nil
}

func newCertLabCmd(g *remote.Flags) *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Make a CA, a server's and an admin's certificate for this machine",
		Long: `Make a CA, one certificate for all servers on this machine (server.pem) and one of an admin (client.pem), where
--certs DIR of servers, trainers and commands finds them.`,
		Example: `  rowraft cert lab --dir certs && rowraft server --certs certs --data-dir data --with-scheduler`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			made, err := MakeLab(f.dir, f.cluster, f.req.Hosts, time.Duration(f.days)*Day)
			if err != nil {
				return err
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, made, func(w io.Writer, wide bool) error {
				return printCerts(w, wide, made)
			})
		},
	}
	f.flags(cmd, 90)
	cmd.Flags().StringVar(&f.cluster, "cluster", "lab", "name of the cluster: a certificate of another is not let in")
	cmd.Flags().StringSliceVar(&f.req.Hosts, "host", []string{"127.0.0.1", "localhost"},
		"addresses and names at which servers and trainers listen")
	return cmd
}

// MakeLab makes a CA, the certificate of all servers of one machine, and that of an admin, in dir.
func MakeLab(dir, cluster string, hosts []string, valid time.Duration) ([]Certificate, error) {
	ca, err := certs.NewCA(dir, cluster, caDays*Day)
	if err != nil {
		return nil, err
	}
	made := []Certificate{viewOf(ca.Cert, filepath.Join(dir, "ca.pem"))}
	for _, r := range []struct {
		out string
		id  certs.Identity
	}{
		{"server", certs.Identity{Role: certs.Server, Name: "server"}},
		{"client", certs.Identity{Role: certs.Admin, Name: "admin"}},
	} {
		v, err := issue(ca, filepath.Join(dir, r.out), certs.Request{Identity: r.id, Hosts: hosts, Valid: valid})
		if err != nil {
			return nil, err
		}
		made = append(made, v)
	}
	return made, nil
}

func newCertCACmd(g *remote.Flags) *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:     "ca",
		Short:   "Make the CA of a cluster: ca.pem and ca.key",
		Example: `  rowraft cert ca --dir certs --cluster ads-prod`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			ca, err := certs.NewCA(f.dir, f.cluster, time.Duration(f.days)*Day)
			if err != nil {
				return err
			}
			v := viewOf(ca.Cert, filepath.Join(f.dir, "ca.pem"))
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				return printCerts(w, wide, []Certificate{v})
			})
		},
	}
	f.flags(cmd, caDays)
	cmd.Flags().StringVar(&f.cluster, "cluster", "lab", "name of the cluster: a certificate of another is not let in")
	return cmd
}

// make issues the certificates that the flags request.
func (f *certFlags) make(cmd *cobra.Command, g *remote.Flags) error {
	if err := f.check(); err != nil {
		return err
	}
	ca, err := certs.OpenCA(f.dir)
	if err != nil {
		return cli.Hint(err, "`rowraft cert ca --dir "+f.dir+"` makes a CA")
	}
	if f.out == "" {
		f.out = filepath.Join(f.dir, f.req.Name)
	}
	f.req.Valid = time.Duration(f.days) * Day
	v, err := issue(ca, f.out, f.req)
	if err != nil {
		return err
	}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		return printCerts(w, wide, []Certificate{v})
	})
}

func issue(ca *certs.CA, base string, r certs.Request) (Certificate, error) {
	files, err := ca.Issue(base, r)
	if err != nil {
		return Certificate{}, err
	}
	cert, err := certs.ReadCertificate(files.Cert)
	if err != nil {
		return Certificate{}, err
	}
	return viewOf(cert, files.Cert), nil
}

func newCertServerCmd(g *remote.Flags) *cobra.Command {
	f := certFlags{req: certs.Request{Identity: certs.Identity{Role: certs.Server}}}
	cmd := &cobra.Command{
		Use:     "server",
		Short:   "Make the certificate of a server",
		Example: `  rowraft cert server --dir certs --name n1 --host 10.0.0.5,n1.example.net --out certs/n1`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.make(cmd, g) },
	}
	f.flags(cmd, 365)
	cmd.Flags().StringVar(&f.req.Name, "name", "server", "name of the server")
	cmd.Flags().StringSliceVar(&f.req.Hosts, "host", []string{"127.0.0.1", "localhost"},
		"addresses and names at which it is reached")
	cmd.Flags().StringVar(&f.out, "out", "", "path of the files without .pem and .key; default: DIR/NAME")
	return cmd
}

func newCertClientCmd(g *remote.Flags) *cobra.Command {
	var f certFlags
	role := ""
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Make the certificate of a person, a trainer or a reader",
		Long: `Make the certificate of a caller of servers.

admin     tables, restores, and all that follows but calls between servers
operator  servers, moves, checkpoints; no rows
trainer   reads and changes the rows of --tables, takes part in training jobs
reader    reads the rows of --tables`,
		Example: `  rowraft cert client --dir certs --role trainer --name alice --tables user,item --out certs/alice`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.req.Role = certs.Role(role)
			if f.req.Role == certs.Server {
				return cli.Usagef("--role server: `rowraft cert server` makes certificates of servers")
			}
			return f.make(cmd, g)
		},
	}
	f.flags(cmd, 365)
	cmd.Flags().StringVar(&role, "role", string(certs.Reader), "admin, operator, trainer or reader")
	cmd.Flags().StringVar(&f.req.Name, "name", "client", "name of the owner: sessions and jobs belong to it")
	cmd.Flags().StringSliceVar(&f.req.Tables, "tables", nil,
		"tables of a trainer or reader: names, beginnings with * behind them, or * for all")
	cmd.Flags().StringSliceVar(&f.req.Hosts, "host", nil,
		"addresses and names at which it listens: trainers that average, --metrics-listen")
	cmd.Flags().StringVar(&f.out, "out", "", "path of the files without .pem and .key; default: DIR/NAME")
	return cmd
}

func newCertInspectCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "inspect FILE…",
		Short:   "Show whose certificates these are, and when they expire",
		Long:    "Show whose certificates these are, and when they expire. Exit code 3 if one has expired.",
		Example: `  rowraft cert inspect certs/*.pem`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("cert inspect: want at least one PEM file")
			}
			var all []Certificate
			expired := ""
			for _, path := range args {
				cert, err := certs.ReadCertificate(path)
				if err != nil {
					return err
				}
				v := viewOf(cert, path)
				if all = append(all, v); v.expired() {
					expired = path
				}
			}
			if err := cli.Show(cmd.OutOrStdout(), g.Output, all,
				func(w io.Writer, wide bool) error { return printCerts(w, wide, all) }); err != nil {
				return err
			}
			if expired != "" {
				return cli.Verdict(fmt.Errorf("%s has expired", expired))
			}
			return nil
		},
	}
}
