package logs

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/offline"
	"github.com/rowraft/rowraft/wire"
)

// NewCmd returns the command `rowraft log`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Look at the logs of servers that do not run"}
	cmd.AddCommand(newLogDumpCmd(g), newLogVerifyCmd(g))
	return cmd
}

func newLogDumpCmd(g *remote.Flags) *cobra.Command {
	group, from, to := "", uint64(0), uint64(0)
	cmd := &cobra.Command{
		Use:   "dump DATA_DIR",
		Short: "Print the Raft log of a stopped server",
		Long: `Print what the Raft logs in a server's data directory hold. The server must not run;
nothing in the directory is changed. Entries before the oldest one are in snapshots.`,
		Example: `  rowraft log dump /var/lib/rowraft --group shard-0
  rowraft log dump /var/lib/rowraft --group shard-0 --from 1200 --to 1210 -o json`,
		Args: cli.OneArg("the data directory of a server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := openLogs(args[0])
			if err != nil {
				return fmt.Errorf("log dump: %w", err)
			}
			defer o.Close()
			v, err := dumpLogs(o, group, rowraft.Index(from), rowraft.Index(to))
			if err != nil {
				return fmt.Errorf("log dump: %w", err)
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	cmd.Flags().StringVar(&group, "group", "",
		"only this Raft group: shard-0, shard-1 …, or meta; default: all on the server")
	cmd.Flags().Uint64Var(&from, "from", 0, "first index to print; default: the oldest there is")
	cmd.Flags().Uint64Var(&to, "to", 0, "last index to print; default: the newest there is")
	return cmd
}

// openLogs opens the logs in a data directory.
func openLogs(dataDir string) (*offline.Store, error) {
	if _, err := os.Stat(dataDir); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "data directory: %w", err)
	}
	o, err := offline.Open(vfs.OS, filepath.Join(dataDir, "raft"))
	if rowraft.CodeOf(err) == rowraft.CodeIdentity {
		return nil, cli.Hint(err, "stop the server, or copy its data directory while it does not run and name the copy")
	}
	return o, err
}

// Dump is the contract of `log dump -o json`.
type Dump struct {
	Schema  string      `json:"schema"`
	Cluster string      `json:"cluster"`
	Server  string      `json:"server_id"`
	Groups  []groupJSON `json:"groups"`
}

type groupJSON struct {
	Group     string            `json:"group"`
	Replica   string            `json:"replica"`
	Backend   string            `json:"backend"`
	Term      uint64            `json:"term"`
	First     uint64            `json:"first_index"`
	Last      uint64            `json:"last_index"`
	Snapshots []logSnapshotJSON `json:"snapshots"`
	Entries   []logEntryJSON    `json:"entries"`
}

type logSnapshotJSON struct {
	ID    string `json:"id"`
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	Bytes int64  `json:"bytes"`
}

type logEntryJSON struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	// parts, open-session, create-table, mark, proof, restore-…, metadata; noop, barrier, configuration
	Kind   string        `json:"kind"`
	Bytes  int           `json:"bytes"`
	CRC    string        `json:"crc"` // ok, bad
	Error  string        `json:"error,omitempty"`
	Time   uint64        `json:"log_time_ns,omitempty"`
	Epoch  uint64        `json:"epoch,omitempty"`
	Client string        `json:"client,omitempty"` // of open-session
	Inc    uint64        `json:"incarnation,omitempty"`
	Table  string        `json:"table,omitempty"` // of create-table
	What   string        `json:"what,omitempty"`  // of marks, proofs and restores
	Parts  []logPartJSON `json:"parts,omitempty"`
}

type logPartJSON struct {
	logNumberJSON
	Op       string           `json:"op"`             // push, assign
	Sums     []logNumberJSON  `json:"sums,omitempty"` // of a sum: the pushes that it sums
	Segments []logSegmentJSON `json:"segments"`
	Error    string           `json:"error,omitempty"`
}

type logNumberJSON struct {
	Client string `json:"client"`
	Inc    uint64 `json:"incarnation"`
	Number uint64 `json:"number"`
	Floor  uint64 `json:"floor"`
}

func newLogNumberJSON(p *wire.Part) logNumberJSON {
	return logNumberJSON{hex.EncodeToString(p.Client[:]), uint64(p.Incarnation), uint64(p.Seq), uint64(p.Floor)}
}

type logSegmentJSON struct {
	Table string `json:"table"` // its uid, hexadecimal
	Rows  int    `json:"rows"`
	Dim   int    `json:"dim"`
	DType string `json:"dtype"`
}

func dumpLogs(o *offline.Store, group string, from, to rowraft.Index) (*Dump, error) {
	ids := o.GroupIDs()
	if group != "" {
		ids = []string{group}
	}
	v := &Dump{Schema: cli.JSONSchema, Cluster: string(o.Cluster()), Server: string(o.Node()), Groups: []groupJSON{}}
	for _, id := range ids {
		g, err := o.Group(id)
		if err != nil {
			return nil, err
		}
		out := groupJSON{
			Group: g.ID, Replica: string(g.Replica), Backend: g.Backend, Term: uint64(g.Term),
			First: uint64(g.First), Last: uint64(g.Last), Snapshots: []logSnapshotJSON{}, Entries: []logEntryJSON{},
		}
		for _, s := range g.Snapshots {
			out.Snapshots = append(out.Snapshots, logSnapshotJSON{s.ID, uint64(s.Index), uint64(s.Term), s.Bytes})
		}
		last := g.Last
		if to > 0 {
			last = min(last, to)
		}
		for i := max(g.First, from, 1); i <= last; i++ {
			e, err := g.Entry(i)
			out.Entries = append(out.Entries, newLogEntryJSON(id, e, err))
		}
		v.Groups = append(v.Groups, out)
	}
	return v, nil
}

// newLogEntryJSON describes an entry; err is the error of reading it.
func newLogEntryJSON(group string, e offline.Entry, err error) logEntryJSON {
	out := logEntryJSON{Index: uint64(e.Index), Term: uint64(e.Term), Kind: e.Kind, Bytes: len(e.Data), CRC: "ok"}
	if err != nil {
		out.CRC, out.Error = "bad", err.Error()
		return out
	}
	if e.Kind != offline.KindCommand {
		return out
	}
	if !strings.HasPrefix(group, "shard-") {
		out.Kind = "metadata"
		return out
	}
	if err := out.describe(e.Data); err != nil {
		out.Error = err.Error()
	}
	return out
}

// describe adds the contents of a shard's entry.
func (l *logEntryJSON) describe(entry []byte) error {
	h, body, err := wire.ParseEntryHeader(entry)
	if err != nil {
		return err
	}
	l.Time, l.Epoch = h.LogTime, uint64(h.Epoch)
	switch h.Kind {
	case wire.EntryOpenSession:
		l.Kind = "open-session"
		o, err := wire.ParseOpenSession(body)
		l.Client, l.Inc = hex.EncodeToString(o.Client[:]), uint64(o.Incarnation)
		return err
	case wire.EntryCloseSession:
		l.Kind = "close-session"
		client, inc, err := wire.ParseCloseSession(body)
		l.Client, l.Inc = hex.EncodeToString(client[:]), uint64(inc)
		return err
	case wire.EntryCreateTable:
		l.Kind = "create-table"
		s, _, err := wire.ParseSchema(body)
		l.Table = fmt.Sprintf("%s (%#x)", s.Name, uint64(s.ID))
		return err
	case wire.EntryParts:
		l.Kind = "parts"
		for range h.Parts {
			var p wire.Part
			if body, err = wire.ParsePart(body, &p); err != nil {
				return err
			}
			l.Parts = append(l.Parts, newLogPartJSON(&p))
		}
		return nil
	}
	return l.describeOther(h, body)
}

// describeOther is describe for entries that no client proposed.
func (l *logEntryJSON) describeOther(h wire.EntryHeader, body []byte) error {
	switch h.Kind {
	case wire.EntryMark:
		l.Kind = "mark"
		id, err := wire.ParseMark(body)
		l.What = fmt.Sprintf("of a checkpoint, %x", id)
		return err
	case wire.EntryDropTable:
		l.Kind = "drop-table"
		id, err := wire.ParseDropTable(body)
		l.What = fmt.Sprintf("table %#x", uint64(id))
		return err
	case wire.EntryProof:
		l.Kind = "proof"
		p, err := wire.ParseProof(body)
		switch p.Step {
		case wire.ProofMark:
			l.What = "mark: every replica notes its digest"
		case wire.ProofAgreed:
			l.What = fmt.Sprintf("at mark %d most replicas have %s, digest %x", p.Mark, cli.Plural(int(p.Rows), "row"), p.Digest)
		case wire.ProofDivided:
			l.What = fmt.Sprintf("at mark %d no majority has the same rows", p.Mark)
		}
		return err
	case wire.EntrySweep:
		l.Kind = "sweep"
		w, err := wire.ParseSweep(body)
		l.What = fmt.Sprintf("table %#x, slots %d to %d: %s", uint64(w.Table), w.First, int(w.First)+w.Slots-1, w.String())
		return err
	case wire.EntryMembership:
		l.Kind = "membership"
		m, err := wire.ParseMembership(body)
		l.What = fmt.Sprintf("job %x, generation %d from step %d on: %s", m.Job, m.Generation, m.First,
			cli.Plural(len(m.Members), "member"))
		if len(m.Members) == 0 {
			l.What = fmt.Sprintf("job %x has ended", m.Job)
		}
		return err
	case wire.EntryStep:
		l.Kind = "step"
		s, err := wire.ParseStep(body)
		l.What = fmt.Sprintf("job %x, step %d, piece %d of %s", s.Job, s.Step, s.Piece,
			cli.Plural(s.Contributors.Len(), "worker"))
		if s.Last {
			l.What += ", closes it"
		}
		return err
	case wire.EntryRestoreBegin:
		l.Kind = "restore-begin"
		b, err := wire.ParseRestoreBegin(body)
		l.What = fmt.Sprintf("restore %x to table epoch %d, %s", b.ID, b.Epoch, cli.Plural(len(b.Tables), "table"))
		return err
	case wire.EntryRestoreRows:
		l.Kind = "restore-rows"
		id, seq, _, err := wire.ParseRestoreRows(body)
		l.What = fmt.Sprintf("restore %x, chunk %d", id, seq)
		return err
	case wire.EntryRestoreClose:
		l.Kind = "restore-close"
		c, err := wire.ParseRestoreClose(body)
		l.What = fmt.Sprintf("restore %x to table epoch %d, %s", c.ID, c.Epoch, cli.Plural(int(c.Rows), "row"))
		return err
	case wire.EntryRestoreDrop:
		l.Kind = "restore-drop"
		id, err := wire.ParseRestoreDrop(body)
		l.What = fmt.Sprintf("restore %x", id)
		return err
	}
	return rowraft.Errorf(rowraft.CodeVersionTooNew, "entry of kind %d", h.Kind)
}

func newLogPartJSON(p *wire.Part) logPartJSON {
	out := logPartJSON{
		logNumberJSON: newLogNumberJSON(p),
		Op: map[wire.Op]string{wire.OpPush: "push", wire.OpAssign: "assign", wire.OpDelete: "delete",
			wire.OpClocked: "clocked push", wire.OpSum: "sum"}[p.Op], Segments: []logSegmentJSON{},
	}
	payload := p.Payload
	if p.Op == wire.OpClocked {
		_, segments, err := wire.ParseClock(payload)
		if err != nil {
			out.Error = err.Error()
		}
		payload = segments
	}
	if p.Op == wire.OpSum {
		var contributors []byte
		contributors, payload = wire.ParseSum(p)
		for len(contributors) > 0 {
			var c wire.Part
			contributors = wire.NextContributor(contributors, &c)
			out.Sums = append(out.Sums, newLogNumberJSON(&c))
		}
		out.logNumberJSON = logNumberJSON{}
	}
	for len(payload) > 0 {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil {
			out.Error = err.Error() // the shard refuses such a part when it applies the entry
			break
		}
		payload = rest
		out.Segments = append(out.Segments, logSegmentJSON{fmt.Sprintf("%#x", uint64(seg.Table)), seg.N, seg.Dim,
			seg.DType.String()})
	}
	return out
}

func (v *Dump) print(w io.Writer, wide bool) error {
	for i, g := range v.Groups {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s, replica %s, %s, term %d, entries %d to %d\n", g.Group, g.Replica, g.Backend, g.Term, g.First,
			g.Last)
		for _, s := range g.Snapshots {
			fmt.Fprintf(w, "snapshot up to entry %d of term %d, %s\n", s.Index, s.Term, cli.Size(uint64(s.Bytes)))
		}
		t := cli.NewTable(w, wide, []string{"INDEX", "TERM", "KIND", "BYTES", "CRC", "WHAT"}, "INDEX", "TERM", "BYTES")
		for _, e := range g.Entries {
			for j, what := range e.lines(wide) {
				if j == 0 {
					t.AppendRow(table.Row{e.Index, e.Term, e.Kind, e.Bytes, e.CRC, what})
				} else {
					t.AppendRow(table.Row{"", "", "", "", "", what})
				}
			}
		}
		t.Render()
	}
	return nil
}

// lines describes an entry, one line for each part.
func (l *logEntryJSON) lines(wide bool) []string {
	short := func(client string) string {
		if wide || len(client) < 8 {
			return client
		}
		return client[:8]
	}
	switch {
	case l.Error != "":
		return []string{l.Error}
	case l.Kind == "open-session", l.Kind == "close-session":
		return []string{fmt.Sprintf("client %s, incarnation %d", short(l.Client), l.Inc)}
	case l.Kind == "create-table":
		return []string{"table " + l.Table}
	case l.What != "":
		return []string{l.What}
	}
	out := []string{}
	for _, p := range l.Parts {
		text := fmt.Sprintf("%s client %s/%d number %d:", p.Op, short(p.Client), p.Inc, p.Number)
		if len(p.Sums) > 0 {
			text = fmt.Sprintf("sum of %d pushes:", len(p.Sums))
		}
		for i, s := range p.Segments {
			if i > 0 {
				text += ","
			}
			text += fmt.Sprintf(" %s of table %s", cli.Plural(s.Rows, "row"), s.Table)
		}
		if len(p.Segments) == 0 && p.Error == "" {
			text += " no rows"
		}
		out = append(out, text+p.Error)
	}
	if len(out) == 0 {
		return []string{""}
	}
	return out
}

func newLogVerifyCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DATA_DIR...",
		Short: "Check the logs and snapshots of stopped servers, and against each other",
		Long: `Check every checksum of the logs and snapshots in the data directories, and that the logs
of one group are one log: entries of one index and term are equal, so are all before them, and
what a snapshot covers does not differ at all. Later entries may differ: no server acknowledged
them. The servers must not run; nothing is changed. Exit code 3 if something is wrong.`,
		Example: "  rowraft log verify /evidence/n1 /evidence/n2 /evidence/n3",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("%s: want the data directories of servers", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := verifyLogs(args)
			if err != nil {
				return fmt.Errorf("log verify: %w", err)
			}
			if err := cli.Show(cmd.OutOrStdout(), g.Output, v, v.print); err != nil {
				return err
			}
			if len(v.Problems) > 0 {
				return cli.Verdict(fmt.Errorf("log verify: %s found", cli.Plural(len(v.Problems), "problem")))
			}
			return nil
		},
	}
}

// verifiedJSON is the contract of `log verify -o json`.
type verifiedJSON struct {
	Schema   string              `json:"schema"`
	Replicas []verifiedGroupJSON `json:"replicas"`
	Problems []string            `json:"problems"`
}

type verifiedGroupJSON struct {
	Group     string `json:"group"`
	Dir       string `json:"dir"`
	First     uint64 `json:"first_index"`
	Last      uint64 `json:"last_index"`
	Snapshots int    `json:"snapshots"`
	Agrees    uint64 `json:"agrees_to_index"` // with the replica of the group in the first directory; 0: nothing in common
}

func verifyLogs(dirs []string) (v *verifiedJSON, err error) {
	v = &verifiedJSON{Schema: cli.JSONSchema, Replicas: []verifiedGroupJSON{}, Problems: []string{}}
	first := make(map[string]*offline.Group)
	cluster := rowraft.ClusterID("")
	for _, dir := range dirs {
		o, oerr := openLogs(dir)
		if oerr != nil {
			return nil, oerr
		}
		defer func() { err = errors.Join(err, o.Close()) }()
		if cluster != "" && o.Cluster() != cluster {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is of cluster %s, %s of %s", dir, o.Cluster(), dirs[0],
				cluster)
		}
		cluster = o.Cluster()
		for _, id := range o.GroupIDs() {
			if err := v.verifyGroup(o, dir, id, first); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func (v *verifiedJSON) verifyGroup(o *offline.Store, dir, id string, first map[string]*offline.Group) error {
	wrong := func(err error) { v.Problems = append(v.Problems, fmt.Sprintf("%s in %s: %v", id, dir, err)) }
	g, err := o.Group(id)
	if rowraft.CodeOf(err) == rowraft.CodeCorrupt {
		wrong(err)
		return nil
	}
	if err != nil {
		return err
	}
	found := g.Verify()
	for _, err := range found {
		wrong(err)
	}
	out := verifiedGroupJSON{Group: id, Dir: dir, First: uint64(g.First), Last: uint64(g.Last),
		Snapshots: len(g.Snapshots), Agrees: uint64(g.Last)}
	switch other := first[id]; {
	case len(found) > 0:
		out.Agrees = 0
	case other == nil:
		first[id] = g
	default:
		agrees, err := offline.Match(other, g)
		if err != nil {
			wrong(fmt.Errorf("not the log of the first directory: %w", err))
		}
		out.Agrees = uint64(agrees)
	}
	v.Replicas = append(v.Replicas, out)
	return nil
}

func (v *verifiedJSON) print(w io.Writer, wide bool) error {
	t := cli.NewTable(w, wide, []string{"GROUP", "DIRECTORY", "FIRST", "LAST", "SNAPSHOTS", "AGREES TO"}, "FIRST", "LAST",
		"SNAPSHOTS", "AGREES TO")
	for _, r := range v.Replicas {
		t.AppendRow(table.Row{r.Group, r.Dir, r.First, r.Last, r.Snapshots, r.Agrees})
	}
	t.Render()
	for _, p := range v.Problems {
		fmt.Fprintf(w, "WRONG: %s\n", p)
	}
	return nil
}
