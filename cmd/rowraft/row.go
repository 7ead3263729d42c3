package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

func newRowCmd(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "row", Short: "Look at single rows and delete them"}
	cmd.AddCommand(newRowGetCmd(g), newRowDeleteCmd(g))
	return cmd
}

// tableAndKeys checks the arguments of the commands for rows.
func tableAndKeys(cmd *cobra.Command, args []string) error {
	if len(args) < 2 {
		return usagef("%s: want the name of a table and one key or more; got %d arguments", cmd.CommandPath(), len(args))
	}
	return nil
}

// parseKeys reads keys, decimal or with 0x hexadecimal, and sorts them.
func parseKeys(args []string) ([]rowraft.Key, error) {
	keys := make([]rowraft.Key, len(args))
	for i, s := range args {
		k, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return nil, usagef("key %q: want an integer from 0 to 18446744073709551615, or with 0x in hexadecimal", s)
		}
		keys[i] = rowraft.Key(k)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// onTable connects a client and calls do with a handle to the table.
func (g *globals) onTable(cmd *cobra.Command, name string, do func(context.Context, *client.Client, *client.Table) error) (err error) {
	if _, err := g.clientTLS(); err != nil {
		return err
	}
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Endpoints: g.endpoints, TLS: g.tls})
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

type rowsJSON struct {
	Schema string    `json:"schema"`
	Table  string    `json:"table"`
	Rows   []rowJSON `json:"rows"`
}

// rowJSON has its key as a string: JSON numbers do not hold 64 bits.
type rowJSON struct {
	Key     string    `json:"key"`
	Exists  bool      `json:"exists"` // false: the weights are those of the initializer
	Weights []float32 `json:"weights"`
}

func newRowGetCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "get TABLE KEY...",
		Short:   "Show the weights of rows",
		Long:    "Show the weights of rows, as the leaders of their shards have them. A key without a row shows the initializer; nothing is created.",
		Example: "  rowraft row get user_emb 17 0x2a",
		Args:    tableAndKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(args[1:])
			if err != nil {
				return err
			}
			v := rowsJSON{Schema: jsonSchema, Table: args[0], Rows: []rowJSON{}}
			err = g.onTable(cmd, args[0], func(ctx context.Context, c *client.Client, t *client.Table) error {
				seg := client.Segment{Table: t, Keys: keys, Values: make([]float32, len(keys)*t.Dim()), Present: make([]bool, len(keys))}
				if err := c.Pull(ctx, seg); err != nil {
					return err
				}
				for i, k := range keys {
					v.Rows = append(v.Rows, rowJSON{strconv.FormatUint(uint64(k), 10), seg.Present[i], seg.Values[i*t.Dim() : (i+1)*t.Dim()]})
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("row get %s: %w", args[0], err)
			}
			return show(cmd.OutOrStdout(), g.output, v, v.print)
		},
	}
}

// shownWeights is how many weights of a row a table for people shows.
const shownWeights = 8

func (v rowsJSON) print(w io.Writer, wide bool) error {
	out := newTable(w, []string{"KEY", "ROW", "WEIGHTS"}, "KEY")
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
	return nil
}

func newRowDeleteCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "delete TABLE KEY...",
		Short: "Delete rows, with their optimizer state",
		Long: "Delete rows, with their optimizer state, and return when that is on a majority of disks. Keys without a row are passed over. " +
			"A deleted key reads as the initializer; the next push creates its row anew.",
		Example: "  rowraft row delete user_emb 17 0x2a",
		Args:    tableAndKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := parseKeys(args[1:])
			if err != nil {
				return err
			}
			err = g.onTable(cmd, args[0], func(ctx context.Context, _ *client.Client, t *client.Table) error {
				_, err := t.Delete(ctx, keys)
				return err
			})
			if err != nil {
				return fmt.Errorf("row delete %s: %w", args[0], err)
			}
			v := struct {
				Schema string `json:"schema"`
				Table  string `json:"table"`
				Keys   int    `json:"keys"`
			}{jsonSchema, args[0], len(keys)}
			return show(cmd.OutOrStdout(), g.output, v, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "table %s: %s deleted\n", v.Table, plural(v.Keys, "key"))
				return err
			})
		},
	}
}
