package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newTransferLeaderCmd(g *remote.Flags) *cobra.Command {
	to := ""
	cmd := &cobra.Command{
		Use:   "transfer-leader SHARD [--to SERVER]",
		Short: "Hand the lead of a shard to another of its replicas",
		Long: `Hand the lead of a shard to another of its replicas.

Only a replica with a vote whose log is at the leader's end can take it. Pushes and pulls of the shard
wait for some milliseconds; nothing is lost. It works while the scheduler is down.`,
		Example: `  rowraft shard transfer-leader 2 --to n3
  rowraft shard transfer-leader 2              # to the replica with the longest log`,
		Args: cli.OneArg("the SHARD, a number from `rowraft shard list`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			shard, err := shardArg(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			v, err := transferLeader(ctx, g, shard, to)
			if err != nil {
				return fmt.Errorf("shard transfer-leader: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	cmd.Flags().StringVar(&to, "to", "",
		"name or id of the server that is to lead; without it the replica with the longest log does")
	return cmd
}

func shardArg(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, cli.Usagef("shard %q: want a number from `rowraft shard list`", s)
	}
	return uint32(n), nil
}

// transferJSON is the contract of `shard transfer-leader -o json`.
type transferJSON struct {
	Schema  string  `json:"schema"`
	Shard   uint32  `json:"shard"`
	From    string  `json:"from"`
	To      string  `json:"to"`
	Term    uint64  `json:"term"`
	Seconds float64 `json:"seconds"`
}

func (v *transferJSON) print(w io.Writer, _ bool) error {
	if v.From == v.To {
		_, err := fmt.Fprintf(w, "Shard %d: %s leads already.\n", v.Shard, v.To)
		return err
	}
	_, err := fmt.Fprintf(w, "Shard %d: %s handed the lead to %s in %v (term %d).\n",
		v.Shard, v.From, v.To, time.Duration(v.Seconds*float64(time.Second)).Round(100*time.Microsecond), v.Term)
	return err
}

// transferLeader asks the leader of a shard to transfer the leadership. It repeats that after temporary errors. A
// repeated transfer does no harm.
func transferLeader(ctx context.Context, g *remote.Flags, shard uint32, to string) (v *transferJSON, err error) {
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var reply *rowraftv1.TransferLeaderReply
	m, err := c.OnShard(ctx, shard, 5*time.Second, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		reply, err = rowraftv1.NewReplicasClient(conn).TransferLeader(ctx,
			&rowraftv1.TransferLeaderRequest{Shard: shard, ToNode: to})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &transferJSON{
		Schema: cli.JSONSchema, Shard: shard, From: view.NodeName(m.GetMap(), reply.FromNode),
		To:   view.NodeName(m.GetMap(), reply.ToNode),
		Term: reply.Term, Seconds: float64(reply.TookNs) / 1e9,
	}, nil
}
