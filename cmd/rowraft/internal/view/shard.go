package view

import (
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// ShardList is the contract of `shard list -o json`.
type ShardList struct {
	Schema     string       `json:"schema"`
	MapVersion uint64       `json:"map_version"`
	Shards     []ShardState `json:"shards"`
}

// ShardState is one shard with its replicas.
type ShardState struct {
	Shard       uint32    `json:"shard"`
	State       string    `json:"state"` // ok, no-leader, divided, degraded, catching-up
	Leader      string    `json:"leader"`
	Term        uint64    `json:"term"`
	CommitIndex uint64    `json:"commit_index"`
	Applied     uint64    `json:"applied_index"`
	MaxLag      uint64    `json:"max_lag_entries"`
	Slots       int       `json:"slots"`
	Rows        uint64    `json:"rows"`
	MemoryBytes uint64    `json:"memory_bytes"`
	Replicas    []Replica `json:"replicas"`
	Learners    []Replica `json:"learners"` // learners do not vote yet
}

// Replica is one replica as its server reports it.
type Replica struct {
	ID          string `json:"id"`
	Server      string `json:"server"`
	ServerID    string `json:"server_id"`
	ServerState string `json:"server_state"`
	Role        string `json:"role"` // "" if it has not reported, or its server is down
	Term        uint64 `json:"term"`
	CommitIndex uint64 `json:"commit_index"`
	Applied     uint64 `json:"applied_index"`
	Lag         uint64 `json:"lag_entries"`
	Rows        uint64 `json:"rows"`
	MemoryBytes uint64 `json:"memory_bytes"`
	LogBytes    uint64 `json:"log_bytes"`
	Proved      uint64 `json:"proved_index"`  // newest mark at which its rows were those of the majority
	Divided     uint64 `json:"divided_index"` // mark at which no majority had the same rows; 0: none
	Fenced      bool   `json:"fenced"`
	Error       string `json:"error"`

	Reported bool `json:"-"` // the numbers are those of its last report
}

// catchingUp is the number of entries by which a replica may be behind and still count as up to date.
const catchingUp = 1000

// NewShardList returns the shards of a status. With a table name it counts the rows and bytes of that table only.
func NewShardList(r *rowraftv1.StatusReply, tableName string) (*ShardList, error) {
	only, err := tableID(r.GetMap(), tableName)
	if err != nil {
		return nil, err
	}
	slots := make(map[uint32]int)
	for _, s := range r.GetMap().GetSlots() {
		slots[s.GetShard()] += int(s.GetCount())
	}
	v := &ShardList{Schema: cli.JSONSchema, MapVersion: r.GetMap().GetVersion(), Shards: []ShardState{}}
	for _, s := range r.GetMap().GetShards() {
		sh := ShardState{Shard: s.GetId(), Slots: slots[s.GetId()], Replicas: []Replica{}, Learners: []Replica{}}
		for _, rep := range s.GetReplicas() {
			sh.Replicas = append(sh.Replicas, NewReplica(r, rep, only))
		}
		for _, rep := range s.GetLearners() {
			sh.Learners = append(sh.Learners, NewReplica(r, rep, only))
		}
		sh.summarize()
		v.Shards = append(v.Shards, sh)
	}
	return v, nil
}

// tableID returns the id of a table; 0 for the empty name.
func tableID(m *rowraftv1.Map, name string) (uint64, error) {
	if name == "" {
		return 0, nil
	}
	t, err := FindTable(m, name)
	return t.GetId(), err
}

// FindTable returns the table with this name.
func FindTable(m *rowraftv1.Map, name string) (*rowraftv1.TableSchema, error) {
	var names []string
	for _, t := range m.GetTables() {
		if t.GetName() == name {
			return t, nil
		}
		names = append(names, t.GetName())
	}
	err := rowraft.Errorf(rowraft.CodeTableNotFound, "table %q does not exist%s", name, cli.DidYouMean("", name, names))
	return nil, cli.Hint(err, "`rowraft table list` shows the tables")
}

// NewReplica returns the last report of a replica. If only is not 0, it counts the rows and bytes of that table only.
func NewReplica(r *rowraftv1.StatusReply, rep *rowraftv1.Replica, only uint64) Replica {
	out := Replica{ID: rep.GetId(), ServerID: rep.GetNode(), Server: NameOr("", rep.GetNode()), ServerState: "unknown"}
	for _, n := range r.GetNodes() {
		if n.GetNode().GetId() != rep.GetNode() {
			continue
		}
		out.Server, out.ServerState = NameOr(n.GetNode().GetName(), n.GetNode().GetId()), n.GetState()
		for _, st := range n.GetReplicas() {
			if st.GetReplicaId() != rep.GetId() {
				continue
			}
			out.Reported = true
			if out.ServerState != "down" { // the role that it reported last may contradict the present leader
				out.Role = st.GetRole()
			}
			out.Term, out.CommitIndex, out.Applied = st.GetTerm(), st.GetCommitIndex(), st.GetAppliedIndex()
			out.Rows, out.MemoryBytes, out.LogBytes, out.Error = st.GetRows(), st.GetMemoryBytes(), st.GetLogBytes(),
				st.GetError()
			out.Proved, out.Divided, out.Fenced = st.GetProvedIndex(), st.GetDividedIndex(), st.GetFenced() != ""
			if only == 0 {
				continue
			}
			out.Rows, out.MemoryBytes = 0, 0
			for _, ts := range st.GetTables() {
				if ts.GetTable() == only {
					out.Rows, out.MemoryBytes = ts.GetRows(), ts.GetMemoryBytes()
				}
			}
		}
	}
	return out
}

// summarize sets the fields that follow from the replicas.
func (s *ShardState) summarize() {
	s.State = "no-leader"
	for _, r := range s.Replicas {
		if r.Role == RoleLeader && r.ServerState == "up" && r.Term >= s.Term {
			s.State, s.Leader, s.Term = "ok", r.Server, r.Term
			s.CommitIndex, s.Applied, s.Rows, s.MemoryBytes = r.CommitIndex, r.Applied, r.Rows, r.MemoryBytes
		}
	}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if r.Reported { // the lag of a silent replica is unknown
			r.Lag = max(s.CommitIndex, r.Applied) - r.Applied
			s.MaxLag = max(s.MaxLag, r.Lag)
		}
		switch {
		case s.State == "no-leader" || s.State == "divided":
		case r.Divided > 0:
			s.State = "divided"
		case r.ServerState != "up" || r.Role == "" || r.Error != "":
			s.State = "degraded"
		case r.Lag > catchingUp && s.State == "ok":
			s.State = "catching-up"
		}
	}
}

// Print writes a table.
func (v *ShardList) Print(w io.Writer, wide bool) error {
	header := []string{"SHARD", "LEADER", "TERM", "COMMIT", "APPLIED", "LAG(max)", "REPLICAS", "ROWS", "BYTES", "STATE"}
	if wide {
		header = append(header, "SLOTS", "LOG")
	}
	right := []string{"SHARD", "TERM", "COMMIT", "APPLIED", "LAG(max)", "ROWS", "BYTES", "SLOTS", "LOG"}
	t := cli.NewTable(w, wide, header, right...).OnlyWide("TERM", "COMMIT", "APPLIED")
	for _, s := range v.Shards {
		leader := s.Leader
		if leader == "" {
			leader = "-"
		}
		row := table.Row{s.Shard, leader, s.Term, cli.Count(s.CommitIndex), cli.Count(s.Applied), cli.Count(s.MaxLag),
			s.members(wide), cli.Count(s.Rows), cli.Size(s.MemoryBytes), s.State}
		if wide {
			log := uint64(0)
			for _, r := range s.Replicas {
				log += r.LogBytes
			}
			row = append(row, s.Slots, cli.Size(log))
		}
		t.AppendRow(row)
	}
	t.Render()
	return nil
}

// members formats the servers of a shard: * leads, + is joining, ! has a problem.
func (s *ShardState) members(wide bool) string {
	out := make([]string, len(s.Replicas)+len(s.Learners))
	for i, r := range append(slices.Clone(s.Replicas), s.Learners...) {
		out[i] = r.Server
		if i >= len(s.Replicas) {
			out[i] += "+"
		}
		if r.Role == RoleLeader && r.Server == s.Leader {
			out[i] += "*"
		}
		if r.ServerState != "up" || r.Role == "" || r.Error != "" {
			out[i] += "!"
		}
		if wide {
			out[i] += "(" + NameOr("", r.ID) + ")"
		}
	}
	return strings.Join(out, " ")
}
