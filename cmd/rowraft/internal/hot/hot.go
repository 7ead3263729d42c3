package hot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewCmd returns the command `rowraft hot`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "hot", Short: "Show the skew: the keys, shards and servers that are accessed most"}
	tableName, limit := "", 0
	keys := &cobra.Command{
		Use:   "keys",
		Short: "Show the keys that are accessed most, and how much of the accesses the first few keys receive",
		Long: `Show the keys that are accessed most, and how much of the accesses the first few keys receive.

An access is a row that a server returned to a pull or took from a push, in about the last minute: of the accesses
before, those of every 30 s count half as much as those of the next. A trainer asks for a key once in a batch, however
often it occurs there. Each server samples the keys of its requests and has counters for 1,024 keys of each shard, so
a share is an estimate: BETWEEN is where it is in 19 of 20 cases.`,
		Example: `  rowraft hot keys
  rowraft hot keys --table user_emb --limit 50
  rowraft hot keys -o json | jq '.curve'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > maxKeys {
				return cli.Usagef("hot keys: --limit %d: want 1 to %d", limit, maxKeys)
			}
			seen, err := ask(cmd.Context(), g, tableName, maxKeys)
			if err != nil {
				return fmt.Errorf("hot keys: %w", err)
			}
			v := newKeys(seen, limit)
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	keys.Flags().IntVar(&limit, "limit", 10, "show so many keys, at most 1000")
	shards := &cobra.Command{
		Use:   "shards",
		Short: "Show the rows per second of each shard and each server",
		Long: `Show the rows per second of each shard and each server, in about the last minute.

PULLED are rows that servers returned, PUSHED those that leaders took from pushes. A follower that applies a push does
not count it. BY has the servers that did it with their share; the leader has a *.`,
		Example: `  rowraft hot shards
  rowraft hot shards --table user_emb -o json | jq '.servers'`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			seen, err := ask(cmd.Context(), g, tableName, 0)
			if err != nil {
				return fmt.Errorf("hot shards: %w", err)
			}
			v := newShards(seen)
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	for _, c := range []*cobra.Command{keys, shards} {
		c.Flags().StringVar(&tableName, "table", "", "count the accesses to this table only")
		cmd.AddCommand(c)
	}
	return cmd
}

// maxKeys is the most keys that are asked of a server for each shard.
const maxKeys = 1000

// seen is what the servers report.
type seen struct {
	Map    *rowraftv1.Map
	heat   map[string][]*rowraftv1.ShardHeat // by the name of the server
	silent []string                          // "n2 (why)"
}

// ask asks every server.
func ask(ctx context.Context, g *remote.Flags, tableName string, limit uint32) (s *seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	m, err := c.AwaitMap(ctx)
	if err != nil {
		return nil, err
	}
	s = &seen{Map: m.GetMap(), heat: make(map[string][]*rowraftv1.ShardHeat)}
	only := uint64(0)
	if tableName != "" {
		t, err := view.FindTable(s.Map, tableName)
		if err != nil {
			return nil, err
		}
		only = t.GetId()
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, n := range s.Map.GetNodes() {
		if n.GetNoShards() {
			continue
		}
		conn, err := c.Pool.Get(n.GetAddr())
		if err != nil {
			return nil, err
		}
		name := view.NameOr(n.GetName(), n.GetId())
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, g.AskLimit)
			defer cancel()
			r, err := rowraftv1.NewReplicasClient(conn).HotKeys(ctx, &rowraftv1.HotKeysRequest{Table: only, Limit: limit})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.silent, errs = append(s.silent, fmt.Sprintf("%s (%v)", name, err)), append(errs, err)
				return
			}
			s.heat[name] = r.GetShards()
		})
	}
	wg.Wait()
	slices.Sort(s.silent)
	if len(s.heat) == 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

// perSecond returns the factor from a count of h to a rate.
func perSecond(h *rowraftv1.ShardHeat) float64 { return 1e9 / float64(max(h.GetOverNs(), 1e9)) }

// leaders returns the name of the server that leads each shard.
func (s *seen) leaders() map[uint32]string {
	out := make(map[uint32]string)
	for name, heat := range s.heat {
		for _, h := range heat {
			if h.GetLeader() {
				out[h.GetShard()] = name
			}
		}
	}
	return out
}

func (s *seen) tableName(id uint64) string {
	for _, t := range s.Map.GetTables() {
		if t.GetId() == id {
			return t.GetName()
		}
	}
	return fmt.Sprintf("%#x", id)
}

// load is what was done per second.
type load struct {
	Pulled float64 `json:"pulled_rows_per_second"`
	Pushed float64 `json:"pushed_rows_per_second"`
	Share  float64 `json:"share"` // of all shards, or servers
}

func (l *load) rows() float64 { return l.Pulled + l.Pushed }

func (l *load) add(o load) { l.Pulled, l.Pushed = l.Pulled+o.Pulled, l.Pushed+o.Pushed }

func loadOf(h *rowraftv1.ShardHeat) (l load) {
	for _, t := range h.GetTables() {
		l.add(load{Pulled: t.GetPulled() * perSecond(h), Pushed: t.GetPushed() * perSecond(h)})
	}
	return l
}

// shardsJSON is the contract of `hot shards -o json`.
type shardsJSON struct {
	Schema      string       `json:"schema"`
	OverSeconds float64      `json:"over_seconds"`
	Shards      []shardLoad  `json:"shards"`
	Servers     []serverLoad `json:"servers"`
	MaxOverMean float64      `json:"max_over_mean"` // of the rows of the servers; 0: there were none
	Silent      []string     `json:"silent"`        // servers that did not answer
}

type shardLoad struct {
	Shard  uint32 `json:"shard"`
	Leader string `json:"leader"`
	load
	By []serverLoad `json:"by"` // servers, the most loaded first
}

type serverLoad struct {
	Server string `json:"server"`
	Leads  int    `json:"leads"` // shards
	load
}

func newShards(s *seen) *shardsJSON {
	v := &shardsJSON{Schema: cli.JSONSchema, Shards: []shardLoad{}, Servers: []serverLoad{}, Silent: append([]string{},
		s.silent...)}
	leaders := s.leaders()
	for _, sh := range s.Map.GetShards() {
		v.Shards = append(v.Shards, shardLoad{Shard: sh.GetId(), Leader: leaders[sh.GetId()], By: []serverLoad{}})
	}
	total := load{}
	for name, heat := range s.heat {
		server := serverLoad{Server: name}
		for _, h := range heat {
			l := loadOf(h)
			v.OverSeconds = max(v.OverSeconds, float64(h.GetOverNs())/1e9)
			leads := 0
			if h.GetLeader() {
				leads = 1
			}
			server.add(l)
			server.Leads += leads
			for i := range v.Shards {
				if sh := &v.Shards[i]; sh.Shard == h.GetShard() {
					sh.add(l)
					sh.By = append(sh.By, serverLoad{Server: name, Leads: leads, load: l})
				}
			}
		}
		total.add(server.load)
		v.Servers = append(v.Servers, server)
	}
	share(v.Servers, total.rows())
	for i := range v.Shards {
		sh := &v.Shards[i]
		sh.Share = ratio(sh.rows(), total.rows())
		share(sh.By, sh.rows())
		slices.SortFunc(sh.By, func(a, b serverLoad) int {
			return cmp.Or(cmp.Compare(b.rows(), a.rows()), cmp.Compare(a.Server, b.Server))
		})
	}
	slices.SortFunc(v.Servers, func(a, b serverLoad) int { return cmp.Compare(a.Server, b.Server) })
	for _, x := range v.Servers {
		v.MaxOverMean = max(v.MaxOverMean, x.Share*float64(len(v.Servers)))
	}
	return v
}

func share(list []serverLoad, of float64) {
	for i := range list {
		list[i].Share = ratio(list[i].rows(), of)
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// percent formats a share.
func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 1, 64) + " %" }
