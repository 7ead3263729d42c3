package traffic

import (
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// cluster is the tables of a cluster that a test changes.
type cluster map[rowraft.TableID]string

func (c cluster) name(id rowraft.TableID) (string, bool) { name, ok := c[id]; return name, ok }

// payload returns a request with n keys for each of the tables.
func payload(n int, tables ...rowraft.TableID) (out []byte) {
	for _, id := range tables {
		s := wire.Segment{Table: id, N: n, Dim: 4, DType: rowraft.Float32}
		b := make([]byte, s.Size())
		s.Put(b)
		out = append(out, b...)
	}
	return out
}

// collected returns the samples of c by name and labels (code, op, table, as far as the metric has them).
func collected(t *testing.T, c *Counts) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{c})
	families, err := reg.Gather() // refuses two samples with equal labels
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

type collector struct{ *Counts }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range Descs {
		ch <- d
	}
}

func TestRequestsAreCountedByOperationCodeAndTable(t *testing.T) {
	c := New(cluster{1: "clicks", 2: "users"}.name)
	for _, err := range []error{nil, nil, &rowraft.NotLeaderError{}} {
		call := c.Begin(Push, payload(10, 1, 2))
		call.End(err)
	}
	rows := wire.Segment{N: 3, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoKeys | wire.FlagVersions}
	reply := make([]byte, rows.Size())
	rows.Put(reply).Unchanged[0] = 4
	reply = reply[:rows.LeaveOut(reply, 1)]
	call := c.Begin(Pull, payload(3, 2, 7))
	call.Replied(reply)
	call.End(nil)
	call = c.BeginTable(OpenSession, 0)
	call.End(&rowraft.OverloadedError{Limit: "sessions"})

	push := float64(wire.SegmentHeaderSize + 10*(8+4*4))
	got := collected(t, c)
	for name, want := range map[string]float64{
		"rowraft_requests_total OK push clicks": 2, "rowraft_requests_total OK push users": 2,
		"rowraft_requests_total NotLeader push clicks": 1, "rowraft_request_keys_total NotLeader push clicks": 10,
		"rowraft_request_keys_total OK push clicks":        20,
		"rowraft_received_bytes_total OK push clicks":      2 * push,
		"rowraft_sent_bytes_total OK push clicks":          0,
		"rowraft_requests_total OK pull users":             1,
		"rowraft_sent_bytes_total OK pull users":           24 + 8 + 2*(4+4*4),
		"rowraft_unchanged_keys_total OK pull users":       1,
		"rowraft_requests_total OK pull unknown":           1,
		"rowraft_requests_total Overloaded open_session ":  1,
		"rowraft_request_seconds push":                     2, // not the refused one
		"rowraft_request_seconds pull":                     1,
		"rowraft_request_seconds open_session":             0,
		"rowraft_requests_total LeadershipLost push users": 0,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	c.Refusals(func(limit string, n uint64) {
		if want := limit == "sessions"; want != (n == 1) {
			t.Errorf("refused for %s: %d", limit, n)
		}
	})
}

// TestTablesHaveABound: calls for more tables than have counters count as table "other", also if the cluster has a
// table of that name. A dropped table gives its place to the next one.
func TestTablesHaveABound(t *testing.T) {
	tables := cluster{1: "other"}
	for id := rowraft.TableID(2); id <= maxTables+20; id++ {
		tables[id] = fmt.Sprintf("t%d", id)
	}
	c := New(tables.name)
	request := func(id rowraft.TableID) {
		call := c.Begin(Push, payload(1, id))
		call.End(nil)
	}
	for id := rowraft.TableID(1); id <= maxTables+20; id++ {
		request(id)
	}
	if n := collected(t, c)["rowraft_requests_total OK push other"]; n != 21 {
		t.Errorf("table other has %v requests, want those of itself and of 20 tables", n)
	}
	if n := len(c.byName); n != maxTables {
		t.Errorf("%d tables have counters, want %d", n, maxTables)
	}
	delete(tables, 2)
	tables[1000] = "new"
	request(1000)
	if n := collected(t, c)["rowraft_requests_total OK push new"]; n != 1 {
		t.Errorf("a table that was created after another was dropped has %v requests, want 1", n)
	}
	delete(tables, 3)
	tables[1001] = "t3" // dropped and created again
	request(1001)
	if n := collected(t, c)["rowraft_requests_total OK push t3"]; n != 2 {
		t.Errorf("table t3 has %v requests, want those of both tables of this name", n)
	}
}

// TestIDsHaveABound: a table that is dropped and created again and again keeps its counters, and its old ids are
// forgotten.
func TestIDsHaveABound(t *testing.T) {
	tables := cluster{}
	c := New(tables.name)
	const times = 3 * maxIDs
	for id := rowraft.TableID(1); id <= times; id++ {
		delete(tables, id-1)
		tables[id] = "clicks"
		call := c.Begin(Push, payload(1, id))
		call.End(nil)
	}
	if n := len(*c.tables.Load()); n > maxIDs {
		t.Errorf("%d ids are remembered, want at most %d", n, maxIDs)
	}
	if n := collected(t, c)["rowraft_requests_total OK push clicks"]; n != times {
		t.Errorf("%v requests, want %d", n, times)
	}
}

func TestACallAllocatesNothing(t *testing.T) {
	c := New(cluster{1: "clicks", 2: "users"}.name)
	p, failed := payload(100, 1, 2), errors.New("failed")
	if n := testing.AllocsPerRun(100, func() {
		call := c.Begin(Push, p)
		call.End(nil)
		call = c.Begin(Push, p)
		call.End(failed)
	}); n > 2 { // those of errors.As for the failed call
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCall is what a request of one table costs.
func BenchmarkCall(b *testing.B) {
	c := New(cluster{1: "clicks"}.name)
	p := payload(8192, 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			call := c.Begin(Push, p)
			call.End(nil)
		}
	})
}
