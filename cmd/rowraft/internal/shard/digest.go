package shard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newDigestCmd(g *remote.Flags) *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use:   "digest SHARD... | --all",
		Short: "Compare the replicas of shards: rows and digest of each, at one index",
		Long: `Compare the replicas of shards: rows and digest of each, at one index.

The leader of each shard marks an index in its log, and every replica reports its digest there, while pushes
continue. A replica that differs from the majority is fenced, as by the comparisons that
leaders make all the time. The exit code is 3 unless all are equal.`,
		Example: `  rowraft shard digest 2
  rowraft shard digest --all -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return cli.Usagef("shard digest: want SHARD numbers from `rowraft shard list`, or --all")
			}
			shards := make([]uint32, len(args))
			for i, a := range args {
				var err error
				if shards[i], err = shardArg(a); err != nil {
					return err
				}
			}
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			v, err := compareDigests(ctx, g, shards)
			if err != nil {
				return fmt.Errorf("shard digest: %w", err)
			}
			if err := cli.Show(cmd.OutOrStdout(), g.Output, v, v.print); err != nil {
				return err
			}
			return v.verdict()
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all shards of the cluster")
	return cmd
}

// digestsJSON is the contract of `shard digest -o json`.
type digestsJSON struct {
	Schema string       `json:"schema"`
	Equal  bool         `json:"equal"` // all replicas of the requested shards
	Shards []digestJSON `json:"shards"`
}

type digestJSON struct {
	Shard    uint32              `json:"shard"`
	Index    uint64              `json:"index"`
	Verdict  string              `json:"verdict"` // agreed, divided, undecided
	Equal    bool                `json:"equal"`
	Replicas []replicaDigestJSON `json:"replicas"`
}

type replicaDigestJSON struct {
	ID     string `json:"id"`
	Server string `json:"server"`
	Role   string `json:"role"` // leader, follower, learner, fenced
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"` // 32 hexadecimal digits; "": not reported
	Equal  bool   `json:"equal"`  // to the digest of the majority
	Error  string `json:"error"`
}

// compareDigests asks the leaders of the given shards, or of all, to compare their replicas.
func compareDigests(ctx context.Context, g *remote.Flags, shards []uint32) (v *digestsJSON, err error) {
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	m, err := c.AwaitMap(ctx)
	if err != nil {
		return nil, err
	}
	if len(shards) == 0 {
		for _, s := range m.GetMap().GetShards() {
			shards = append(shards, s.GetId())
		}
	}
	v = &digestsJSON{Schema: cli.JSONSchema, Equal: true, Shards: []digestJSON{}}
	for _, shard := range shards {
		var reply *rowraftv1.ProveReply
		m, err := c.OnShard(ctx, shard, 10*time.Second, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			reply, err = rowraftv1.NewReplicasClient(conn).Prove(ctx, &rowraftv1.ProveRequest{Shard: shard})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("shard %d: %w", shard, err)
		}
		d := newDigestJSON(m.GetMap(), shard, reply)
		v.Shards = append(v.Shards, d)
		v.Equal = v.Equal && d.Equal
	}
	return v, nil
}

func newDigestJSON(m *rowraftv1.Map, shard uint32, r *rowraftv1.ProveReply) digestJSON {
	d := digestJSON{
		Shard: shard, Index: r.GetMarkIndex(), Equal: r.GetVerdict() == rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED,
		Verdict:  strings.ToLower(strings.TrimPrefix(r.GetVerdict().String(), "DIGEST_VERDICT_")),
		Replicas: []replicaDigestJSON{},
	}
	agreed := d.Equal
	for _, p := range r.GetReplicas() {
		out := replicaDigestJSON{
			ID: p.GetReplicaId(), Server: view.NodeName(m, p.GetNode()), Role: "follower", Rows: p.GetRows(),
			Digest: hex.EncodeToString(p.GetDigest()),
			Equal:  agreed && p.GetNoted() && p.GetRows() == r.GetRows() && string(p.GetDigest()) == string(r.GetDigest()),
			Error:  p.GetError(),
		}
		switch {
		case p.GetFenced() != "":
			out.Role, out.Error = "fenced", p.GetFenced()
		case p.GetLeader():
			out.Role = view.RoleLeader
		case !p.GetVoter():
			out.Role = "learner"
		}
		d.Replicas = append(d.Replicas, out)
		d.Equal = d.Equal && out.Equal
	}
	return d
}

func (v *digestsJSON) print(w io.Writer, wide bool) error {
	t := cli.NewTable(w, wide, []string{"SHARD", "INDEX", "SERVER", "ROLE", "ROWS", "DIGEST", "EQUAL"}, "SHARD", "INDEX",
		"ROWS")
	// The verdict is in EQUAL; a start tells digests apart, and the line fits.
	digits := 16
	if wide {
		digits = 32
	}
	var notes []string
	for _, s := range v.Shards {
		for _, r := range s.Replicas {
			equal, digest, rows := "yes", r.Digest[:min(len(r.Digest), digits)], cli.Count(r.Rows)
			switch {
			case r.Digest == "":
				equal, digest, rows = "unknown", "-", "-"
			case !r.Equal && s.Verdict != "agreed":
				equal = s.Verdict
			case !r.Equal:
				equal = "NO"
			}
			t.AppendRow(table.Row{s.Shard, cli.Count(s.Index), r.Server, r.Role, rows, digest, equal})
			if r.Error != "" {
				notes = append(notes, fmt.Sprintf("%s: %s", r.Server, r.Error))
			}
		}
	}
	t.Render()
	for _, n := range notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
}

// verdict returns an error unless all replicas were equal.
func (v *digestsJSON) verdict() error {
	for _, s := range v.Shards {
		if !s.Equal {
			return cli.Verdict(fmt.Errorf("shard %d: its replicas are not all known to be equal at index %d", s.Shard, s.Index))
		}
	}
	return nil
}
