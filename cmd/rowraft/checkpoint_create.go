package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newCheckpointCreateCmd(g *globals) *cobra.Command {
	name := ""
	cmd := &cobra.Command{
		Use:   "create DESTINATION",
		Short: "Write all tables at one cut through all shards, while training goes on",
		Long: `Write all tables at one cut through all shards, while training goes on. Pushes wait for the cut, some
milliseconds, and not for the writing. The servers write; this command shows how far they are. When it is
interrupted, or anything fails, there is no checkpoint and nothing else has changed.

--timeout bounds the search for the cluster's leader, not the writing.

` + destinationHelp,
		Example: `  rowraft checkpoint create /mnt/checkpoints
  rowraft checkpoint create s3://models/ctr --name nightly-1 -o json`,
		Args: oneArg("the destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			done, err := g.createCheckpoint(cmd, &rowraftv1.CreateCheckpointRequest{Destination: args[0], Name: name})
			if err != nil {
				return fmt.Errorf("checkpoint create: %w", err)
			}
			m, err := checkpoint.ParseManifest(done.GetManifest())
			if err != nil {
				return err
			}
			return g.showCreated(cmd, newCheckpointJSON(done.GetName(), m.Bytes(), m, nil), time.Since(started))
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the checkpoint; by default the time and four digits")
	return cmd
}

// leaderConn is a connection to the leader of the metadata group, which is looked
// for until --timeout.
func (g *globals) leaderConn(cmd *cobra.Command, c *cluster) (*grpc.ClientConn, error) {
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	leader := ""
	err := c.call(ctx, true, func(context.Context, rowraftv1.ClusterClient) (err error) {
		leader, err = c.findLeader(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err := c.dial(leader); err != nil {
		return nil, err
	}
	return c.conns[leader], nil
}

func (g *globals) createCheckpoint(cmd *cobra.Command, req *rowraftv1.CreateCheckpointRequest) (done *rowraftv1.CreateCheckpointReply, err error) {
	c, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	conn, err := g.leaderConn(cmd, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	stream, err := rowraftv1.NewCheckpointsClient(conn).CreateCheckpoint(ctx, req)
	if err != nil {
		return nil, rpc.FromStatus(err)
	}
	bar := newMeter(cmd.ErrOrStderr(), "write")
	defer bar.done()
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && done != nil:
			return done, nil
		case errors.Is(err, io.EOF):
			return nil, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
		case err != nil:
			return nil, lost(rpc.FromStatus(err), "the server that led the checkpoint is gone, and what it had not finished is no checkpoint: run it again, under another name if it had one")
		}
		bar.set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		if reply.GetPhase() == "done" {
			done = reply
		}
	}
}

func (g *globals) showCreated(cmd *cobra.Command, c checkpointJSON, took time.Duration) error {
	v := struct {
		Schema     string         `json:"schema"`
		Checkpoint checkpointJSON `json:"checkpoint"`
		Seconds    float64        `json:"seconds"`
	}{jsonSchema, c, took.Seconds()}
	return show(cmd.OutOrStdout(), g.output, v, func(w io.Writer, _ bool) error {
		t := newTable(w, []string{"TABLE", "ROWS", "DIGEST"}, "ROWS")
		for _, s := range c.Tables {
			t.AppendRow(table.Row{s.Table, count(s.Rows), s.Digest})
		}
		t.Render()
		_, err := fmt.Fprintf(w, "checkpoint %s: %s rows, %s of %s in %.1fs; pushes waited %.1fms at most\n",
			c.Name, count(c.Rows), size(c.Bytes), plural(c.Shards, "shard"), took.Seconds(), c.HeldMs)
		return err
	})
}

// lost adds advice to the end of a call that came from no server.
func lost(err error, hint string) error {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeUnknown, rowraft.CodeLeadershipLost:
		return &hintedError{err, hint}
	}
	return err
}
