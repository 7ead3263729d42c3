package hot

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// report is what three servers say: n1 leads both shards, n2 has a replica of shard 0, n3 does not answer. The keys of
// shard 0 follow Zipf(1).
func report() *seen {
	s := &seen{
		Map: &rowraftv1.Map{
			Shards: []*rowraftv1.Shard{{Id: 0}, {Id: 1}},
			Tables: []*rowraftv1.TableSchema{{Id: 7, Name: "clicks"}},
		},
		heat: make(map[string][]*rowraftv1.ShardHeat), silent: []string{"n3 (no answer)"},
	}
	heat := func(shard uint32, leader bool, seconds, rows, floor float64) *rowraftv1.ShardHeat {
		h := &rowraftv1.ShardHeat{Shard: shard, Leader: leader, OverNs: uint64(seconds * 1e9), Floor: floor,
			Tables: []*rowraftv1.TableHeat{{Table: 7, Pulled: rows * 0.75, Pushed: rows * 0.25, Samples: rows / 16}}}
		for i := range 100 {
			if n := rows / 10 / float64(i+1); shard == 0 && n > floor {
				h.Keys = append(h.Keys, &rowraftv1.HotKey{Table: 7, Key: uint64(i), Count: n, Error: floor / 2})
			}
		}
		return h
	}
	s.heat["n1"] = []*rowraftv1.ShardHeat{heat(0, true, 50, 6e6, 6000), heat(1, true, 50, 3e6, 0)}
	s.heat["n2"] = []*rowraftv1.ShardHeat{heat(0, false, 25, 1.5e6, 3000)}
	return s
}

// TestKeysOfSeveralServers: rates of servers add up, also of different lengths of time, and the bounds contain the
// errors of all servers.
func TestKeysOfSeveralServers(t *testing.T) {
	v := newKeys(report(), 10)
	if v.Rows != 240_000 { // 120,000 + 60,000 + 60,000
		t.Errorf("%v rows/s, want 240,000", v.Rows)
	}
	first := v.Keys[0]
	if first.Key != 0 || first.Table != "clicks" || first.Leader != "n1" || math.Abs(first.Share-0.075) > 1e-9 {
		t.Errorf("first key %+v, want key 0 with a share of 0.075", first)
	}
	// The counts may be too high by 3000/50 + 1500/25 rows/s, and sampling adds 2 × √(0.075 × 0.925 / samples).
	if low := first.Share - 120.0/240_000; first.Low >= low || first.Low < low-0.002 {
		t.Errorf("lower bound %v, want a little less than %v", first.Low, low)
	}
	if first.High <= first.Share || first.High > first.Share+0.002 {
		t.Errorf("upper bound %v, want a little more than %v", first.High, first.Share)
	}
	if v.Zipf < 0.95 || v.Zipf > 1.05 {
		t.Errorf("exponent %v, want 1", v.Zipf)
	}
	if len(v.Curve) != 6 || v.Curve[3].Keys != 10 || math.Abs(v.Curve[3].Share-0.2197) > 0.001 { // 0.075 × H(10)
		t.Errorf("curve %+v, want 0.2197 at 10 keys", v.Curve)
	}
}

// TestShardsOfSeveralServers: shares of a shard are those of its servers, and the servers are compared with their mean.
func TestShardsOfSeveralServers(t *testing.T) {
	v := newShards(report())
	if s := v.Shards[0]; s.Leader != "n1" || s.Pulled != 135_000 || s.Pushed != 45_000 || s.Share != 0.75 ||
		len(s.By) != 2 || s.By[0].Server != "n1" || math.Abs(s.By[0].Share-2.0/3) > 1e-9 {
		t.Errorf("shard 0: %+v", s)
	}
	if v.MaxOverMean != 1.5 || v.Servers[0].Leads != 2 {
		t.Errorf("%v times the mean, want 1.5: %+v", v.MaxOverMean, v.Servers)
	}
}

// TestTablesFitATerminal: no line of either command is wider than 80 columns.
func TestTablesFitATerminal(t *testing.T) {
	var b bytes.Buffer
	if err := newKeys(report(), 50).print(&b, false); err != nil {
		t.Fatal(err)
	}
	if err := newShards(report()).print(&b, false); err != nil {
		t.Fatal(err)
	}
	if err := newKeys(&seen{Map: &rowraftv1.Map{}}, 5).print(&b, false); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > cli.TableWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
	for _, want := range []string{"about Zipf 1.0", "Without 1 server, no answer: n3", "n1* 67 %, n2 33 %",
		"1.50 times the mean", "No row was pulled"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	t.Logf("\n%s", b.String())
}
