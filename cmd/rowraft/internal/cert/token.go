package cert

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewTokenCmd returns the command `rowraft token`.
func NewTokenCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Let machines without a certificate join",
		Long: `Let machines without a certificate join. A token is a secret for a time and a number of machines: a machine that shows it gets
a certificate of the token's role, made by the leader of the scheduler, which must have been started with --ca-key. The
token holds the fingerprint of the cluster's CA, too, so that a machine sends its secret to no other cluster.

A machine uses it with ` + "`rowraft server --join … --token …`" + ` or ` + "`rowraft cert join`" + `. A token is not needed any more
when the machine has its certificate, which it renews with that.`,
		Example: `  rowraft token create                                       # for one server, for an hour
  rowraft token create --role trainer --name ctr --tables 'user,item_*' --uses 8 --ttl 24h`,
	}
	cmd.AddCommand(newTokenCreateCmd(g), newTokenListCmd(g), newTokenDeleteCmd(g))
	return cmd
}

// Token is a token in the JSON output of all commands. It never has the secret.
type Token struct {
	ID           string   `json:"id"`
	Role         string   `json:"role"`
	Name         string   `json:"name"` // "": any
	Tables       []string `json:"tables"`
	Uses         uint32   `json:"uses"`
	UsedBy       []string `json:"used_by"` // oldest first
	State        string   `json:"state"`   // open, used, expired
	Created      string   `json:"created"`
	CreatedBy    string   `json:"created_by"`
	Expires      string   `json:"expires"`
	ValidSeconds float64  `json:"certificate_valid_seconds"`
}

func newTokenJSON(t *rowraftv1.JoinToken, now time.Time) Token {
	v := Token{
		ID: t.GetId(), Role: t.GetRole(), Name: t.GetName(), Tables: append([]string{}, t.GetTables()...), Uses: t.GetUses(),
		UsedBy: []string{}, State: "open",
		Created: view.Time(t.GetCreatedNs()), CreatedBy: t.GetCreatedBy(), Expires: view.Time(t.GetExpiresNs()),
		ValidSeconds: time.Duration(t.GetValidNs()).Seconds(),
	}
	for _, u := range t.GetUsed() {
		v.UsedBy = append(v.UsedBy, u.GetName())
	}
	switch {
	case uint64(now.UnixNano()) >= t.GetExpiresNs():
		v.State = "expired"
	case len(v.UsedBy) >= int(v.Uses):
		v.State = "used"
	}
	return v
}

func newTokenCreateCmd(g *remote.Flags) *cobra.Command {
	var ask rowraftv1.JoinToken
	var ttl, valid time.Duration
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token; its secret is shown once",
		Long: `Make a token, and print it. The cluster keeps a hash of its secret only, so it is shown once. Hand it on as you would a
password: best in a file, for --token-file.`,
		Example: `  rowraft token create --uses 3 --ttl 30m > token
  rowraft token create --role trainer --name ctr --tables 'user,item_*'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl <= 0 || valid <= 0 {
				return cli.Usagef("--ttl %v, --valid %v: want > 0", ttl, valid)
			}
			ask.ValidNs = uint64(valid)
			reply, err := remote.Call(cmd.Context(), g, route.Once, rowraftv1.NewCertificatesClient,
				rowraftv1.CertificatesClient.CreateToken, &rowraftv1.CreateTokenRequest{Token: &ask, TtlNs: uint64(ttl)})
			if err != nil {
				return err
			}
			v := struct {
				Schema string `json:"schema"`
				Token  Token  `json:"token"`
				Secret string `json:"secret"`
			}{cli.JSONSchema, newTokenJSON(reply.GetToken(), time.Now()), reply.GetSecret()}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
				fmt.Fprintln(w, v.Secret)
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "token %s: %s, until %s; shown once, %s deletes it\n", v.Token.ID,
					forWhom(&v.Token), v.Token.Expires, "`rowraft token delete "+v.Token.ID+"`")
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&ask.Role, "role", "server", "of the certificates: server, operator, trainer or reader")
	f.StringVar(&ask.Name, "name", "",
		"name in the certificates: jobs and sessions belong to names; servers may have any, unless this is given")
	f.StringSliceVar(&ask.Tables, "tables", nil,
		"tables of a trainer or reader: names, beginnings with * behind them, or * for all")
	f.Uint32Var(&ask.Uses, "uses", 1, "machines that it lets in, up to 256")
	f.DurationVar(&ttl, "ttl", time.Hour, "how long it is good for, 1m to 720h")
	f.DurationVar(&valid, "valid", 90*Day, "how long a certificate is valid, 4h to 8784h; it can be renewed")
	return cmd
}

// forWhom describes which certificate a token gives.
func forWhom(t *Token) string {
	who := t.Role
	if t.Name != "" {
		who += " " + t.Name
	}
	if len(t.Tables) > 0 {
		who += " with the tables " + strings.Join(t.Tables, ",")
	}
	return fmt.Sprintf("%s as %s", cli.Plural(int(t.Uses), "machine"), who)
}

func newTokenListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, and the machines that used them",
		Long:    "List the tokens, and the machines that used them. An expired token is listed until the next one is made.",
		Example: "  rowraft token list",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := remote.Call(cmd.Context(), g, route.Once, rowraftv1.NewCertificatesClient,
				rowraftv1.CertificatesClient.ListTokens, &rowraftv1.ListTokensRequest{})
			if err != nil {
				return err
			}
			v := struct {
				Schema string  `json:"schema"`
				Tokens []Token `json:"tokens"`
			}{cli.JSONSchema, []Token{}}
			now := time.Now()
			for _, t := range reply.GetTokens() {
				v.Tokens = append(v.Tokens, newTokenJSON(t, now))
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				header := []string{"TOKEN", "ROLE", "NAME", "USED", "EXPIRES", "STATE"}
				if wide {
					header = append(header, "TABLES", "USED BY", "CREATED BY")
				}
				t := cli.NewTable(w, wide, header)
				for _, x := range v.Tokens {
					row := table.Row{x.ID, x.Role, view.Dash(x.Name), fmt.Sprintf("%d/%d", len(x.UsedBy), x.Uses), x.Expires,
						x.State}
					if wide {
						row = append(row, view.Dash(strings.Join(x.Tables, ",")), view.Dash(strings.Join(x.UsedBy, ",")),
							view.Dash(x.CreatedBy))
					}
					t.AppendRow(row)
				}
				t.Render()
				return nil
			})
		},
	}
}

func newTokenDeleteCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID",
		Short:   "Delete a token; certificates that it gave stay",
		Example: "  rowraft token delete 0123456789abcdef",
		Args:    cli.OneArg("the ID of the token"),
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := remote.Call(cmd.Context(), g, route.Once, rowraftv1.NewCertificatesClient,
				rowraftv1.CertificatesClient.DeleteToken, &rowraftv1.DeleteTokenRequest{Id: args[0]})
			if err != nil {
				return err
			}
			v := struct {
				Schema string `json:"schema"`
				Token  Token  `json:"token"`
			}{cli.JSONSchema, newTokenJSON(reply.GetToken(), time.Now())}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "token %s is deleted; %s it let in\n", v.Token.ID,
					cli.Plural(len(v.Token.UsedBy), "machine"))
				return err
			})
		},
	}
}
