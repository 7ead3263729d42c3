package table

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// NewCmd returns the command `rowraft table`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "table", Short: "Create, shrink, delete, export and import tables, and look at them"}
	cmd.AddCommand(newTableCreateCmd(g), newTableListCmd(g), newTableDescribeCmd(g), newTableDeleteCmd(g),
		newTableShrinkCmd(g), newTableForecastCmd(g), newTableExportCmd(g), newTableImportCmd(g))
	return cmd
}

// tableFlags are the flags of `table create`.
type tableFlags struct {
	kind      string
	dim       int
	optimizer string
	constants rowraft.Optimizer // from the flags of its constants
	init      string
	low, high float32
	mean, dev float32
	seed      uint64
	ifMissing bool

	storage, admit, expire, evict, store, memory string
	capacity                                     uint64
	sumPushes                                    bool
}

func newTableCreateCmd(g *remote.Flags) *cobra.Command {
	var f tableFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a table in every shard",
		Long: "Create a table in every shard; it returns once all of them have it. A table's shape never changes " +
			"afterwards.",
		Example: `  rowraft table create user_emb --dim 16 --optimizer adagrad --lr 0.05 --init uniform --init-low -0.01 --init-high 0.01
  rowraft table create weights --kind dense --dim 64 --optimizer adam --lr 0.001 --init zeros --if-not-exists
  rowraft table create clicks --dim 1 --optimizer ftrl --lr 0.1 --l1 1 --l2 1 --init zeros
  rowraft table create items --dim 64 --optimizer rowwise-adagrad --weight-decay 1e-5 --bound 10
  rowraft table create ads --dim 32 --storage bfloat16 --admit count:3 --expire 168h --capacity 100000000 --evict lru
  rowraft table create history --dim 32 --store tiered --memory 8GiB`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			schema, err := f.schema(args[0], cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return createTable(g, cmd, schema, f.ifMissing)
		},
	}
	fl := cmd.Flags()
	f.register(fl)
	fl.BoolVar(&f.ifMissing, "if-not-exists", false, "accept an existing table of the same shape")
	return cmd
}

// register adds the flags of a schema.
func (f *tableFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.kind, "kind", "sparse", "sparse (embedding rows, any key) or dense (tensors cut into rows)")
	fl.IntVar(&f.dim, "dim", 0, fmt.Sprintf("weights per row, 1 to %d (required)", rowraft.MaxDim))
	f.registerOptimizer(fl)
	fl.StringVar(&f.init, "init", "uniform", "zeros, uniform or normal: how a row reads before its first push")
	fl.Float32Var(&f.low, "init-low", -0.01, "uniform: least weight")
	fl.Float32Var(&f.high, "init-high", 0.01, "uniform: bound that weights stay below")
	fl.Float32Var(&f.mean, "init-mean", 0, "normal: mean")
	fl.Float32Var(&f.dev, "init-stddev", 0.01, "normal: standard deviation")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of the initializer")
	fl.StringVar(&f.storage, "storage", "float32",
		"float32 or bfloat16: how weights are stored; bfloat16 takes half the memory, and pushes round stochastically")
	fl.StringVar(&f.admit, "admit", "all",
		"which keys get a row: all, count:N (with the N-th push) or probability:P (with each push)")
	fl.StringVar(&f.expire, "expire", "",
		"rows that get no push for so long are removed: a duration (168h) or a number of seconds; default never")
	fl.Uint64Var(&f.capacity, "capacity", 0,
		"most rows of the whole table, shared equally by its slots, 4096 by default; 0 for no bound")
	fl.StringVar(&f.evict, "evict", "",
		"which row makes room in a full slot: lru (longest without a push) or lfu (fewest pushes)")
	fl.StringVar(&f.store, "store", "memory",
		"memory (all rows) or tiered (rows that were not used lately are on the servers' disks)")
	fl.StringVar(&f.memory, "memory", "",
		"tiered: how much memory one copy of the table may take over all shards, such as 8GiB")
	fl.BoolVar(&f.sumPushes, "sum-pushes", false,
		"sum the gradients that waiting pushes have for a row, as one mini-batch; sgd and add without a bound do so anyway")
}

// initOnly lists the flags that belong to one initializer only.
var initOnly = []struct{ flag, init string }{
	{"init-low", "uniform"}, {"init-high", "uniform"}, {"init-mean", "normal"}, {"init-stddev", "normal"},
}

// schema checks the flags and converts them to a schema. given reports whether a flag was given.
func (f *tableFlags) schema(name string, given func(string) bool) (rowraft.Schema, error) {
	s := rowraft.Schema{Name: name, Dim: f.dim, Initializer: rowraft.Initializer{Seed: f.seed}}
	switch f.kind {
	case "sparse":
		s.Kind = rowraft.Sparse
	case "dense":
		s.Kind = rowraft.Dense
	default:
		return s, cli.Usagef("--kind %q: want sparse or dense%s", f.kind,
			cli.DidYouMean("", f.kind, []string{"sparse", "dense"}))
	}
	var err error
	if s.Optimizer, err = f.rule(given); err != nil {
		return s, err
	}
	switch i := &s.Initializer; f.init {
	case "zeros":
		i.Kind = rowraft.InitZeros
	case "uniform":
		i.Kind, i.A, i.B = rowraft.InitUniform, f.low, f.high
	case "normal":
		i.Kind, i.A, i.B = rowraft.InitNormal, f.mean, f.dev
	default:
		return s, cli.Usagef("--init %q: want zeros, uniform or normal%s", f.init,
			cli.DidYouMean("", f.init, []string{"zeros", "uniform", "normal"}))
	}
	for _, of := range initOnly {
		if given(of.flag) && f.init != of.init {
			return s, cli.Usagef("--%s has no meaning with --init %s", of.flag, f.init)
		}
	}
	if err := f.policies(&s); err != nil {
		return s, err
	}
	return s, s.Validate()
}

// policies sets how rows are stored, which keys get a row, and which rows are removed.
func (f *tableFlags) policies(s *rowraft.Schema) (err error) {
	switch f.storage {
	case "float32":
	case "bfloat16", "bf16":
		s.Storage = rowraft.BFloat16
	default:
		return cli.Usagef("--storage %q: want float32 or bfloat16%s", f.storage,
			cli.DidYouMean("", f.storage, []string{"float32", "bfloat16"}))
	}
	if s.Memory, err = f.memoryLimit(); err != nil {
		return err
	}
	if s.Admission, err = rowraft.ParseAdmission(f.admit); err != nil {
		return cli.Usagef("--admit: %w", err)
	}
	if s.Expire, err = rowraft.ParseTicks(f.expire); err != nil {
		return cli.Usagef("--expire: %w", err)
	}
	s.Capacity.Rows, s.SumPushes = f.capacity, f.sumPushes
	if s.Capacity.Evict, err = rowraft.ParseEvict(f.evict); err != nil {
		return cli.Usagef("--evict: %w", err)
	}
	switch {
	case f.capacity > 0 && f.evict == "":
		return cli.Usagef("--capacity needs --evict lru or --evict lfu: which row makes room?")
	case f.capacity == 0 && f.evict != "":
		return cli.Usagef("--evict %s needs --capacity: when is the table full?", f.evict)
	}
	return nil
}

// memoryLimit returns the limit of a tiered table; 0: all rows are in memory.
func (f *tableFlags) memoryLimit() (uint64, error) {
	switch {
	case f.store != "" && f.store != "memory" && f.store != "tiered":
		return 0, cli.Usagef("--store %q: want memory or tiered%s", f.store,
			cli.DidYouMean("", f.store, []string{"memory", "tiered"}))
	case f.store != "tiered" && f.memory != "":
		return 0, cli.Usagef("--memory needs --store tiered: otherwise all rows are in memory")
	case f.store != "tiered":
		return 0, nil
	case f.memory == "":
		return 0, cli.Usagef("--store tiered needs --memory: how much memory may the table take? For example 8GiB")
	}
	n, err := humanize.ParseBytes(f.memory)
	if err != nil || n == 0 {
		return 0, cli.Usagef("--memory %q: want a size such as 8GiB", f.memory)
	}
	return n, nil
}

func createTable(g *remote.Flags, cmd *cobra.Command, schema rowraft.Schema, ifMissing bool) error {
	layer := route.Once // after an unknown outcome a second call would find the table of the first
	if ifMissing {
		layer = route.Control
	}
	reply, err := remote.Call(cmd.Context(), g, layer, rowraftv1.NewClusterClient, rowraftv1.ClusterClient.CreateTable,
		&rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&schema), IfNotExists: ifMissing})
	switch {
	case err != nil && rowraft.CodeOf(err).MaybeApplied() && !ifMissing:
		return cli.Hint(fmt.Errorf("table create %s: %w", schema.Name, err),
			"the table may have been created: the same command with --if-not-exists is safe")
	case err != nil:
		return fmt.Errorf("table create %s: %w", schema.Name, err)
	}
	v := struct {
		Schema  string    `json:"schema"`
		Created bool      `json:"created"`
		Table   tableJSON `json:"table"`
	}{cli.JSONSchema, reply.GetCreated(), newTableJSON(reply.GetTable())}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		what := "created"
		if !v.Created {
			what = "exists already, with the same shape"
		}
		_, err := fmt.Fprintf(w, "table %s %s: %s, dim %d, %s, id %s\n", v.Table.Name, what, v.Table.Kind, v.Table.Dim,
			v.Table.Optimizer.Kind, v.Table.ID)
		return err
	})
}

// tableJSON is the contract of a table in JSON.
type tableJSON struct {
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Kind        string          `json:"kind"`
	Dim         uint32          `json:"dim"`
	Initializer initializerJSON `json:"initializer"`
	Optimizer   optimizerJSON   `json:"optimizer"`
	Storage     string          `json:"storage"`
	Admission   string          `json:"admission"`
	ExpireS     uint32          `json:"expire_seconds"` // 0: never
	Capacity    *capacityJSON   `json:"capacity,omitempty"`
	MemoryLimit uint64          `json:"memory_limit_bytes,omitempty"` // of a tiered table, over all shards
	SumPushes   bool            `json:"sum_pushes,omitempty"`
	Rows        uint64          `json:"rows"`
	MemoryBytes uint64          `json:"memory_bytes"`
}

// capacityJSON describes the capacity; nil if the table has none.
type capacityJSON struct {
	Rows  uint64 `json:"rows"`
	Evict string `json:"evict"`
}

// initializerJSON has only the constants of its kind.
type initializerJSON struct {
	Kind   string   `json:"kind"`
	Seed   string   `json:"seed"`
	Low    *float32 `json:"low,omitempty"`
	High   *float32 `json:"high,omitempty"`
	Mean   *float32 `json:"mean,omitempty"`
	StdDev *float32 `json:"stddev,omitempty"`
}

func newTableJSON(p *rowraftv1.TableSchema) tableJSON {
	s := rpc.SchemaFromProto(p)
	i, o := s.Initializer, s.Optimizer
	t := tableJSON{
		ID: strconv.FormatUint(uint64(s.ID), 10), Name: s.Name, Kind: s.Kind.String(), Dim: p.GetDim(),
		Initializer: newInitializerJSON(i),
		Optimizer:   newOptimizerJSON(o),
		Storage:     s.StorageType().String(), Admission: s.Admission.String(), ExpireS: s.Expire, MemoryLimit: s.Memory,
		SumPushes: s.SumPushes,
	}
	if c := s.Capacity; c.Rows > 0 {
		t.Capacity = &capacityJSON{c.Rows, c.Evict.String()}
	}
	return t
}

// policies describes in words which keys get a row and which rows are removed.
func (t *tableJSON) policies() (admission, expiry, capacity string) {
	expiry, capacity = "never", "no bound"
	if t.ExpireS > 0 {
		expiry = "after " + (time.Duration(t.ExpireS) * rowraft.Tick).String() + " without a push"
	}
	if c := t.Capacity; c != nil {
		capacity = fmt.Sprintf("%s rows, then %s makes room", cli.Count(c.Rows), c.Evict)
	}
	return t.Admission, expiry, capacity
}

func newInitializerJSON(i rowraft.Initializer) initializerJSON {
	v := initializerJSON{Seed: strconv.FormatUint(i.Seed, 10)}
	switch i.Kind {
	case rowraft.InitZeros:
		v.Kind = "zeros"
	case rowraft.InitUniform:
		v.Kind, v.Low, v.High = "uniform", &i.A, &i.B
	case rowraft.InitNormal:
		v.Kind, v.Mean, v.StdDev = "normal", &i.A, &i.B
	default:
		v.Kind = fmt.Sprintf("initializer(%d)", i.Kind)
	}
	return v
}

func (i initializerJSON) String() string {
	switch i.Kind {
	case "uniform":
		return fmt.Sprintf("uniform [%v, %v)", *i.Low, *i.High)
	case "normal":
		return fmt.Sprintf("normal (%v, %v)", *i.Mean, *i.StdDev)
	}
	return i.Kind
}

// perShard returns the contents of one table in each shard, from the leaders' reports.
func perShard(r *rowraftv1.StatusReply, name string) ([]view.ShardState, error) {
	v, err := view.NewShardList(r, name)
	if err != nil {
		return nil, err
	}
	return v.Shards, nil
}

func withSizes(r *rowraftv1.StatusReply, p *rowraftv1.TableSchema) (tableJSON, []view.ShardState, error) {
	t := newTableJSON(p)
	shards, err := perShard(r, p.GetName())
	for _, s := range shards {
		t.Rows += s.Rows
		t.MemoryBytes += s.MemoryBytes
	}
	return t, shards, err
}

func newTableListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tables",
		Example: "  rowraft table list -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("table list: %w", err)
			}
			v := struct {
				Schema string      `json:"schema"`
				Tables []tableJSON `json:"tables"`
			}{cli.JSONSchema, []tableJSON{}}
			for _, p := range reply.GetMap().GetTables() {
				t, _, err := withSizes(reply, p)
				if err != nil {
					return err
				}
				v.Tables = append(v.Tables, t)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				header := []string{"TABLE", "KIND", "DIM", "OPTIMIZER", "LR", "INITIALIZER", "ROWS", "BYTES"}
				if wide {
					header = append(header, "STORAGE", "ADMISSION", "EXPIRY", "CAPACITY", "SEED", "ID")
				}
				out := cli.NewTable(w, wide, header, "DIM", "LR", "ROWS", "BYTES").OnlyWide("KIND", "LR", "INITIALIZER")
				for _, t := range v.Tables {
					row := table.Row{t.Name, t.Kind, t.Dim, t.Optimizer.Kind, t.Optimizer.LR, t.Initializer, cli.Count(t.Rows),
						cli.Size(t.MemoryBytes)}
					if wide {
						admission, expiry, capacity := t.policies()
						row = append(row, t.Storage, admission, expiry, capacity, t.Initializer.Seed, t.ID)
					}
					out.AppendRow(row)
				}
				out.Render()
				return nil
			})
		},
	}
}

func newTableDescribeCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:     "describe NAME",
		Aliases: []string{"stats"},
		Short:   "Show one table and how its rows spread over the shards",
		Example: "  rowraft table describe user_emb",
		Args:    cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("table describe %s: %w", args[0], err)
			}
			p, err := view.FindTable(reply.GetMap(), args[0])
			if err != nil {
				return err
			}
			t, shards, err := withSizes(reply, p)
			if err != nil {
				return err
			}
			v := Detail{Schema: cli.JSONSchema, Table: t, Shards: []tableShardJSON{}}
			if t.Rows > 0 {
				v.RowBytes = math.Round(10*float64(t.MemoryBytes)/float64(t.Rows)) / 10
			}
			if schema := rpc.SchemaFromProto(p); schema.Tracked() {
				v.Stream = newStreamJSON(reply, p.GetId())
			}
			if t.MemoryLimit > 0 {
				v.Cold = newColdJSON(reply, p.GetId())
			}
			for _, s := range shards {
				v.Shards = append(v.Shards, tableShardJSON{s.Shard, s.Leader, s.Rows, s.MemoryBytes})
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
}

type Detail struct {
	Schema   string           `json:"schema"`
	Table    tableJSON        `json:"table"`
	RowBytes float64          `json:"bytes_per_row"`
	Stream   *Stream          `json:"stream,omitempty"` // for a table with admission, expiry or a capacity
	Cold     *Cold            `json:"cold,omitempty"`   // for a tiered table
	Shards   []tableShardJSON `json:"shards"`
}

// Cold is the rows of a tiered table that the leaders have on disk, and what they read and wrote since they started or
// restored a snapshot. Errors has a line for each replica whose disk cannot be written or read.
type Cold struct {
	Rows        uint64   `json:"rows"`
	FileBytes   uint64   `json:"file_bytes"`
	RowsRead    uint64   `json:"rows_read"`
	RowsWritten uint64   `json:"rows_written"`
	Errors      []string `json:"errors,omitempty"`
}

func newColdJSON(r *rowraftv1.StatusReply, table uint64) *Cold {
	v := &Cold{}
	for shard, l := range rpc.Leaders(r) {
		for _, t := range l.Replica.GetTables() {
			if t.GetTable() == table {
				v.Rows += t.GetColdRows()
				v.FileBytes += t.GetColdFileBytes()
				v.RowsRead += t.GetColdRowsRead()
				v.RowsWritten += t.GetColdRowsWritten()
				if e := t.GetColdError(); e != "" {
					v.Errors = append(v.Errors, fmt.Sprintf("shard %d: %s", shard, e))
				}
			}
		}
	}
	slices.Sort(v.Errors)
	return v
}

// Stream counts the admitted, expired and evicted keys since the leaders started or restored a snapshot, and the
// present candidates.
type Stream struct {
	Admitted   uint64 `json:"rows_admitted"`
	Rejected   uint64 `json:"pushes_rejected"`
	Evicted    uint64 `json:"rows_evicted"`
	Expired    uint64 `json:"rows_expired"`
	Candidates uint64 `json:"candidates"`
}

// newStreamJSON sums the reports of all shards' leaders on a table.
func newStreamJSON(r *rowraftv1.StatusReply, table uint64) *Stream {
	v := &Stream{}
	for _, l := range rpc.Leaders(r) {
		for _, t := range l.Replica.GetTables() {
			if t.GetTable() == table {
				v.Admitted += t.GetAdmitted()
				v.Rejected += t.GetRejected()
				v.Evicted += t.GetEvicted()
				v.Expired += t.GetExpired()
				v.Candidates += t.GetCandidates()
			}
		}
	}
	return v
}

type tableShardJSON struct {
	Shard       uint32 `json:"shard"`
	Leader      string `json:"leader"`
	Rows        uint64 `json:"rows"`
	MemoryBytes uint64 `json:"memory_bytes"`
}

func (v Detail) print(w io.Writer, wide bool) error {
	t := v.Table
	admission, expiry, capacity := t.policies()
	facts := []string{
		"TABLE", t.Name,
		"ID", t.ID,
		"KIND", t.Kind,
		"DIM", fmt.Sprint(t.Dim),
		"OPTIMIZER", t.Optimizer.String(),
		"INITIALIZER", fmt.Sprintf("%v, seed %s", t.Initializer, t.Initializer.Seed),
		"STORAGE", t.Storage,
		"ADMISSION", admission,
		"EXPIRY", expiry,
		"CAPACITY", capacity,
		"ROWS", cli.Count(t.Rows),
		"MEMORY", fmt.Sprintf("%s, %.0f bytes a row", cli.Size(t.MemoryBytes), v.RowBytes),
	}
	if t.SumPushes {
		facts = append(facts, "SUMS", "pushes that wait together are one mini-batch (--sum-pushes)")
	}
	if c := v.Cold; c != nil {
		facts = append(facts, "STORE", fmt.Sprintf("tiered, %s of memory over all shards", cli.Size(t.MemoryLimit)),
			"ON DISK", fmt.Sprintf("%s rows, files of %s; %s rows read, %s written since the leaders started",
				cli.Count(c.Rows), cli.Size(c.FileBytes), cli.Count(c.RowsRead), cli.Count(c.RowsWritten)))
		for _, e := range c.Errors {
			facts = append(facts, "ERROR", e)
		}
	}
	if s := v.Stream; s != nil {
		facts = append(facts, "STREAM",
			fmt.Sprintf(
				"%s rows admitted, %s pushes rejected, %s rows evicted, %s expired, %s keys wait; since the leaders started",
				cli.Count(s.Admitted), cli.Count(s.Rejected), cli.Count(s.Evicted), cli.Count(s.Expired),
				cli.Count(s.Candidates)))
	}
	if err := cli.Facts(w, facts...); err != nil {
		return err
	}
	fmt.Fprintln(w)
	out := cli.NewTable(w, wide, []string{"SHARD", "LEADER", "ROWS", "BYTES"}, "SHARD", "ROWS", "BYTES")
	for _, s := range v.Shards {
		out.AppendRow(table.Row{s.Shard, s.Leader, cli.Count(s.Rows), cli.Size(s.MemoryBytes)})
	}
	out.Render()
	return nil
}
