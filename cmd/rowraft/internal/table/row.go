package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// NewRowCmd returns the command `rowraft row`.
func NewRowCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "row", Short: "Look at single rows, set and delete them"}
	cmd.AddCommand(newRowGetCmd(g), newRowSetCmd(g), newRowDeleteCmd(g))
	return cmd
}

// tableAndKeys checks the arguments of the commands for rows.
func tableAndKeys(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return cli.Usagef("%s: want the name of a table and one key or more; got %d arguments", cmd.CommandPath(), len(args))
	}
	return nil
}

// parseKeys reads keys, decimal or with 0x hexadecimal, and sorts them.
func parseKeys(args []string) ([]rowraft.Key, error) {
	keys := make([]rowraft.Key, len(args))
	for i, s := range args {
		k, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return nil, cli.Usagef("key %q: want an integer from 0 to 18446744073709551615, or with 0x in hexadecimal", s)
		}
		keys[i] = rowraft.Key(k)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// onTable connects a client and calls do with a handle to the table.
func onTable(g *remote.Flags, cmd *cobra.Command, name string,
	do func(context.Context, *client.Client, *client.Table) error) (err error) {
	ctx, cancel := g.WithTimeout(cmd)
	defer cancel()
	c, err := g.DialClient(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	t, err := c.Table(ctx, name)
	if err != nil {
		return err
	}
	return do(ctx, c, t)
}

type Rows struct {
	Schema string `json:"schema"`
	Table  string `json:"table"`
	Mode   string `json:"mode"`
	// For bounded reads: the greatest age of the rows, and the greatest number of log entries that they lack.
	AgeSeconds *float64 `json:"age_seconds,omitempty"`
	LagEntries *uint64  `json:"lag_entries,omitempty"`
	Rows       []Row    `json:"rows"`
}

// Row has the key as a string, because JSON numbers do not hold 64 bits.
type Row struct {
	Key     string    `json:"key"`
	Exists  bool      `json:"exists"` // false: the weights are those of the initializer
	Weights []float32 `json:"weights"`
}

// readFlags are the flags of a client.Read.
type readFlags struct {
	mode   string
	maxAge time.Duration
	maxLag uint64
}

// readModes maps the names of --mode.
var readModes = map[string]client.ReadMode{"leader": client.Leader, "linearizable": client.Linearizable,
	"bounded": client.Bounded}

// how returns the client.Read of the flags; given reports whether a flag was given.
func (f *readFlags) how(given func(string) bool) (client.Read, error) {
	mode, ok := readModes[f.mode]
	if !ok {
		return client.Read{}, cli.Usagef("--mode %q: want leader, linearizable or bounded", f.mode)
	}
	if mode != client.Bounded {
		if given("max-age") || given("max-lag") {
			return client.Read{}, cli.Usagef("--max-age and --max-lag are for --mode bounded")
		}
		return client.Read{Mode: mode}, nil
	}
	if f.maxAge <= 0 {
		return client.Read{}, cli.Usagef("--max-age %v: want more than 0", f.maxAge)
	}
	return client.Read{Mode: mode, MaxAge: f.maxAge, MaxLag: f.maxLag}, nil
}

func newRowGetCmd(g *remote.Flags) *cobra.Command {
	var f readFlags
	cmd := &cobra.Command{
		Use:   "get TABLE KEY...",
		Short: "Show the weights of rows",
		Long: `Show the weights of rows, as the leaders of their shards have them. A key without a row shows the initializer; nothing is created.

--mode linearizable has the leaders prove that they lead. --mode bounded takes any replica that proves that it is no older
than --max-age, also while a shard has no leader; if none can, the command fails and says how old they are.`,
		Example: `  rowraft row get user_emb 17 0x2a
  rowraft row get user_emb 17 --mode bounded --max-age 10s`,
		Args: tableAndKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(args[1:])
			if err != nil {
				return err
			}
			how, err := f.how(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			v := Rows{Schema: cli.JSONSchema, Table: args[0], Mode: f.mode, Rows: []Row{}}
			err = onTable(g, cmd, args[0], func(ctx context.Context, c *client.Client, t *client.Table) error {
				return v.read(ctx, c, t, how, keys)
			})
			if err != nil {
				return fmt.Errorf("row get %s: %w", args[0], err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.mode, "mode", "leader", "read mode: leader, linearizable or bounded")
	fl.DurationVar(&f.maxAge, "max-age", 10*time.Second, "of --mode bounded: how old the rows may be")
	fl.Uint64Var(&f.maxLag, "max-lag", 0, "of --mode bounded: how many entries of the log they may lack; 0: any number")
	return cmd
}

// read reads the rows of keys, and for a bounded read its age and lag.
func (v *Rows) read(ctx context.Context, c *client.Client, t *client.Table, how client.Read, keys []rowraft.Key) error {
	seg := client.Segment{Table: t, Keys: keys, Values: make([]float32, len(keys)*t.Dim()),
		Present: make([]bool, len(keys))}
	met, err := c.PullWith(ctx, how, seg)
	if err != nil {
		return err
	}
	if how.Mode == client.Bounded {
		age := met.Age.Seconds()
		v.AgeSeconds, v.LagEntries = &age, &met.Lag
	}
	for i, k := range keys {
		v.Rows = append(v.Rows, Row{strconv.FormatUint(uint64(k), 10), seg.Present[i], seg.Values[i*t.Dim() : (i+1)*t.Dim()]})
	}
	return nil
}

// shownWeights bounds the weights of a row in text output.
const shownWeights = 8

func (v Rows) print(w io.Writer, wide bool) error {
	out := cli.NewTable(w, wide, []string{"KEY", "ROW", "WEIGHTS"}, "KEY")
	for _, r := range v.Rows {
		state := "yes"
		if !r.Exists {
			state = "no, initial weights"
		}
		var b strings.Builder
		for i, x := range r.Weights {
			if i == shownWeights && !wide {
				fmt.Fprintf(&b, "… %d more", len(r.Weights)-i)
				break
			}
			fmt.Fprintf(&b, "%v ", x)
		}
		out.AppendRow(table.Row{r.Key, state, strings.TrimSpace(b.String())})
	}
	out.Render()
	if v.AgeSeconds == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "The rows are at most %.3f s old; their replicas lacked %s of the log.\n", *v.AgeSeconds,
		entries(*v.LagEntries))
	return err
}

func entries(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return cli.Count(n) + " entries"
}

func newRowSetCmd(g *remote.Flags) *cobra.Command {
	var weights []float32
	cmd := &cobra.Command{
		Use:   "set TABLE KEY... --weights W,W,...",
		Short: "Set the weights of rows",
		Long: "Set the weights of rows, all to the same, and return when that is on a majority of disks. A key without a " +
			"row gets one; " +
			"the optimizer state of a row stays as it is.",
		Example: "  rowraft row set user_emb 17 --weights 0.5,-0.25,0,1",
		Args:    tableAndKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(args[1:])
			if err != nil {
				return err
			}
			if len(weights) == 0 {
				return cli.Usagef("%s: give --weights, one number for each dimension of the table", cmd.CommandPath())
			}
			err = onTable(g, cmd, args[0], func(ctx context.Context, _ *client.Client, t *client.Table) error {
				if len(weights) != t.Dim() {
					return cli.Usagef("--weights has %s, a row of table %s has %d", cli.Plural(len(weights), "number"), args[0],
						t.Dim())
				}
				_, err := t.Assign(ctx, keys, slices.Repeat(weights, len(keys)))
				return err
			})
			if err != nil {
				return fmt.Errorf("row set %s: %w", args[0], err)
			}
			return showKeys(cmd, g, args[0], len(keys), "set")
		},
	}
	cmd.Flags().Float32SliceVar(&weights, "weights", nil, "numbers, separated by commas; as many as a row has")
	return cmd
}

// keysJSON is the output of the commands that change rows.
type keysJSON struct {
	Schema string `json:"schema"`
	Table  string `json:"table"`
	Keys   int    `json:"keys"`
}

func showKeys(cmd *cobra.Command, g *remote.Flags, table string, n int, done string) error {
	v := keysJSON{cli.JSONSchema, table, n}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "table %s: %s %s\n", v.Table, cli.Plural(v.Keys, "key"), done)
		return err
	})
}

func newRowDeleteCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "delete TABLE KEY...",
		Short: "Delete rows, with their optimizer state",
		Long: "Delete rows, with their optimizer state, and return when that is on a majority of disks. Keys without a row " +
			"are passed over. " +
			"A deleted key reads as the initializer; the next push creates its row again.",
		Example: "  rowraft row delete user_emb 17 0x2a",
		Args:    tableAndKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(args[1:])
			if err != nil {
				return err
			}
			err = onTable(g, cmd, args[0], func(ctx context.Context, _ *client.Client, t *client.Table) error {
				_, err := t.Delete(ctx, keys)
				return err
			})
			if err != nil {
				return fmt.Errorf("row delete %s: %w", args[0], err)
			}
			return showKeys(cmd, g, args[0], len(keys), "deleted")
		},
	}
}
