package table

import (
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
)

// forecastFlags describe a planned table and its cluster.
type forecastFlags struct {
	dim                       int
	optimizer, storage        string
	rows                      string
	slots                     int
	replicas, shards, servers int
}

func newTableForecastCmd(g *remote.Flags) *cobra.Command {
	var f forecastFlags
	cmd := &cobra.Command{
		Use:   "forecast [NAME]",
		Short: "Say what a table will take: memory, snapshots, checkpoints, log",
		Long: `Say what a table will take when it holds so many rows: memory on each server, bytes of a snapshot and a checkpoint, and what a
pushed row adds to the log of each replica.

With NAME it is about a table of the cluster, and --rows is by default twice the rows that it has; without, it needs no cluster,
and the flags say what the table would be.`,
		Example: `  rowraft table forecast --dim 16 --optimizer adagrad --rows 1e9 --shards 64 --servers 12
  rowraft table forecast user_emb --rows 500e6 -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("%s: want the name of one table at most; got %d arguments", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			v := &forecastJSON{Schema: cli.JSONSchema}
			var schema rowraft.Schema
			var err error
			if len(args) == 1 {
				for _, flag := range []string{"dim", "optimizer", "storage", "replicas", "shards", "slots", "servers"} {
					if cmd.Flags().Changed(flag) {
						return cli.Usagef("--%s has no meaning with the name of a table: it is %s's own", flag, args[0])
					}
				}
				schema, err = v.fromCluster(g, cmd, args[0])
			} else {
				schema, err = v.fromFlags(&f)
			}
			if err != nil {
				return err
			}
			if f.rows != "" {
				if v.Rows, err = parseRows(f.rows); err != nil {
					return err
				}
			}
			if err := v.fill(schema); err != nil {
				return err
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.dim, "dim", 0, fmt.Sprintf("weights per row, 1 to %d", rowraft.MaxDim))
	fl.StringVar(&f.optimizer, "optimizer", "adagrad",
		cli.OrList(rowraft.OptimizerNames())+": it decides what is kept for each row besides the weights")
	fl.StringVar(&f.storage, "storage", "float32", "float32 or bfloat16: how weights are stored")
	fl.StringVar(&f.rows, "rows", "", "rows of the whole table, such as 1e9")
	fl.IntVar(&f.replicas, "replicas", 3, "replicas of each shard")
	fl.IntVar(&f.shards, "shards", 4, "shards of the cluster")
	fl.IntVar(&f.slots, "slots", int(rowraft.DefaultSlots), "slots of the cluster, a power of two from 4096 to 65536")
	fl.IntVar(&f.servers, "servers", 3, "servers over which the replicas are spread")
	return cmd
}

// parseRows parses a number of rows, also in the form 1e9.
func parseRows(s string) (uint64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 1) || n > 1<<50 || n != math.Trunc(n) {
		return 0, cli.Usagef("--rows %q: want a whole number of rows, such as 1000000 or 1e9", s)
	}
	return uint64(n), nil
}

// forecastJSON is the contract of a forecast in JSON; bytes are rounded.
type forecastJSON struct {
	Schema   string `json:"schema"`
	Table    string `json:"table,omitempty"`
	Dim      int    `json:"dim"`
	Storage  string `json:"storage"`
	Rule     string `json:"optimizer"`
	Rows     uint64 `json:"rows"`
	Slots    int    `json:"slots"`
	Shards   int    `json:"shards"`
	Replicas int    `json:"replicas"`
	Servers  int    `json:"servers"`

	RowBytes    float64 `json:"bytes_per_row"` // in memory of one replica, index included
	ServerBytes uint64  `json:"memory_bytes_per_server"`
	PeakBytes   uint64  `json:"memory_bytes_per_server_peak"` // while snapshots run under uniform pushes
	TotalBytes  uint64  `json:"memory_bytes_total"`
	Snapshot    uint64  `json:"snapshot_bytes_per_server"`
	Checkpoint  uint64  `json:"checkpoint_bytes"`

	// Bytes of one pushed row in the log of each replica, by the type on the wire.
	LogFloat32  int `json:"log_bytes_per_pushed_row_float32"`
	LogBFloat16 int `json:"log_bytes_per_pushed_row_bfloat16"`

	Now *forecastNowJSON `json:"now,omitempty"` // for a table that exists
}

type forecastNowJSON struct {
	Rows     uint64  `json:"rows"`
	Bytes    uint64  `json:"memory_bytes"` // on the leaders: one replica of each shard
	RowBytes float64 `json:"bytes_per_row"`
}

func (v *forecastJSON) fromFlags(f *forecastFlags) (rowraft.Schema, error) {
	flags := tableFlags{kind: "sparse", dim: f.dim, optimizer: f.optimizer, init: "zeros", storage: f.storage,
		admit: "all"}
	s, err := flags.schema("forecast", func(string) bool { return false })
	switch {
	case err != nil:
		return s, err
	case f.rows == "":
		return s, cli.Usagef("how many rows? give --rows, such as --rows 1e9")
	case f.replicas < 1 || f.shards < 1 || f.servers < f.replicas:
		return s,
			cli.Usagef("%d replicas of %d shards on %d servers: want at least one of each, and no more replicas than servers",
				f.replicas, f.shards, f.servers)
	}
	if err := rowraft.SlotCount(f.slots).Check(); err != nil {
		return s, cli.Usagef("%v", err)
	}
	v.Slots, v.Shards, v.Replicas, v.Servers = f.slots, f.shards, f.replicas, f.servers
	return s, nil
}

func (v *forecastJSON) fromCluster(g *remote.Flags, cmd *cobra.Command, name string) (rowraft.Schema, error) {
	status, err := g.Status(cmd.Context())
	if err != nil {
		return rowraft.Schema{}, fmt.Errorf("table forecast %s: %w", name, err)
	}
	p, err := view.FindTable(status.GetMap(), name)
	if err != nil {
		return rowraft.Schema{}, err
	}
	t, _, err := withSizes(status, p)
	if err != nil {
		return rowraft.Schema{}, err
	}
	m := status.GetMap()
	v.Table, v.Rows = name, max(2*t.Rows, 1)
	v.Shards, v.Servers = len(m.GetShards()), view.ServersIn(m)
	for _, r := range m.GetSlots() {
		v.Slots += int(r.GetCount())
	}
	for _, sh := range m.GetShards() {
		v.Replicas = max(v.Replicas, len(sh.GetReplicas()))
	}
	v.Now = &forecastNowJSON{Rows: t.Rows, Bytes: t.MemoryBytes}
	if t.Rows > 0 {
		v.Now.RowBytes = math.Round(10*float64(t.MemoryBytes)/float64(t.Rows)) / 10
	}
	return rpc.SchemaFromProto(p), nil
}

const (
	// imageShare bounds the memory of pre-images of rows while a snapshot runs under uniform pushes (PERFORMANCE: 15 %
	// of the state).
	imageShare = 0.15
	chunkHead  = 48        // header of a chunk of rows
	chunkFill  = 512 << 10 // filled up to this size
	slotSum    = 40        // a slot in the sums file of a checkpoint
	keyBytes   = 8
)

// fill computes all figures from the shape of the table and of the cluster.
func (v *forecastJSON) fill(s rowraft.Schema) error {
	if c := s.Capacity.Rows; c > 0 {
		v.Rows = min(v.Rows, c)
	}
	rows := float64(v.Rows)
	slots := float64(v.Slots)
	f, err := newForecast(s, rows, slots)
	if err != nil {
		return err
	}
	v.Dim, v.Storage, v.Rule = s.Dim, s.StorageType().String(), s.Optimizer.Kind.String()
	one := f.memoryBytes(rows, v.Shards) // one replica of every shard
	stream := rows * float64(f.recordBytes)
	stream += chunkHead * (stream/chunkFill + math.Min(rows, slots))
	perNode := func(n float64) uint64 { return uint64(math.Ceil(n * float64(v.Replicas) / float64(v.Servers))) }
	v.RowBytes = math.Round(10*one/rows) / 10
	v.ServerBytes, v.PeakBytes = perNode(one), perNode(one+imageShare*rows*float64(f.rowBytes))
	v.TotalBytes = uint64(one) * uint64(v.Replicas)
	v.Snapshot, v.Checkpoint = perNode(stream), uint64(stream+slotSum*math.Min(rows, slots))
	v.LogFloat32, v.LogBFloat16 = keyBytes+4*s.Dim, keyBytes+2*s.Dim
	return nil
}

func (v *forecastJSON) print(w io.Writer, _ bool) error {
	if v.Table != "" {
		if err := cli.Facts(w, "TABLE", v.Table, "NOW", fmt.Sprintf("%s rows, %s, %.0f bytes a row", cli.Count(v.Now.Rows),
			cli.Size(v.Now.Bytes), v.Now.RowBytes)); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return cli.Facts(w,
		"ROWS", fmt.Sprintf("%s of dim %d, %s, %s", cli.Count(v.Rows), v.Dim, v.Rule, v.Storage),
		"CLUSTER", fmt.Sprintf("%s, %s each, on %s", cli.Plural(v.Shards, "shard"), cli.Plural(v.Replicas, "replica"),
			cli.Plural(v.Servers, "server")),
		"MEMORY", fmt.Sprintf("%s on each server (%s while snapshots run), %.0f bytes a row in each replica, %s in all",
			cli.Size(v.ServerBytes), cli.Size(v.PeakBytes), v.RowBytes, cli.Size(v.TotalBytes)),
		"SNAPSHOTS", cli.Size(v.Snapshot)+" on the disk of each server",
		"CHECKPOINT", cli.Size(v.Checkpoint),
		"LOG", fmt.Sprintf("%d bytes a pushed row in each replica, %d from clients that send bfloat16", v.LogFloat32,
			v.LogBFloat16),
	)
}
