package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// fill gives a server a full disk.
func (n *Node) fill() { n.Full, n.NearlyFull = true, true }

// carryOut changes the world as the step says, at once.
func (w *World) carryOut(s Step) {
	sh := &w.Shards[s.Shard]
	if s.Transfer {
		sh.Leader = s.To
		return
	}
	if s.From != "" {
		sh.Replicas = slices.DeleteFunc(slices.Clone(sh.Replicas), func(r rowraft.NodeID) bool { return r == s.From })
		sh.Fenced = slices.DeleteFunc(slices.Clone(sh.Fenced), func(r rowraft.NodeID) bool { return r == s.From })
		sh.FencedLong = slices.DeleteFunc(slices.Clone(sh.FencedLong), func(r rowraft.NodeID) bool { return r == s.From })
	}
	if s.To != "" {
		sh.Replicas = append(slices.Clone(sh.Replicas), s.To)
	}
	if sh.Leader == s.From {
		sh.Leader = s.To
	}
}

// carryOutAll carries out steps until there are none and returns how many.
func (w *World) carryOutAll(t *rapid.T) (steps int) {
	t.Helper()
	for {
		s, ok := Next(w)
		if !ok {
			return steps
		}
		if steps++; steps > 2000 {
			t.Fatalf("after 2000 steps there is another one: %+v", s)
		}
		before := *w
		w.carryOut(s)
		if n := len(w.Shards[s.Shard].Replicas); !s.Transfer && s.To != "" && s.From != "" &&
			n != len(before.Shards[s.Shard].Replicas) {
			t.Fatalf("step %+v: the shard has %d replicas", s, n)
		}
	}
}

// newWorld returns n servers, whose zones repeat in this order, and the shards of a new cluster.
func newWorld(n, shards int, zones ...string) *World {
	w := &World{Balance: true}
	var nodes []clustermap.Node
	for i := range n {
		zone := zones[i%len(zones)]
		id := rowraft.NodeID(fmt.Sprintf("n%02d", i))
		w.Nodes = append(w.Nodes, Node{ID: id, Zone: zone, Up: true})
		node := clustermap.Node{ID: id, Name: string(id)}
		if zone != "" {
			node.Labels = clustermap.ZoneLabel + "=" + zone
		}
		nodes = append(nodes, node)
	}
	id := 0
	for _, sh := range NewShards(nodes, shards, func() string { id++; return fmt.Sprint(id) }) {
		ws := Shard{ID: sh.ID, LedLong: true, Leader: sh.Replicas[0].Node}
		for _, r := range sh.Replicas {
			ws.Replicas = append(ws.Replicas, r.Node)
		}
		w.Shards = append(w.Shards, ws)
	}
	return w
}

// join adds a server.
func (w *World) join(zone string) *Node {
	w.Nodes = append(w.Nodes, Node{ID: rowraft.NodeID(fmt.Sprintf("n%02d", len(w.Nodes))), Zone: zone, Up: true})
	return &w.Nodes[len(w.Nodes)-1]
}

// spread returns the lowest and the highest count of a server that may hold replicas.
func spread(w *World, of map[rowraft.NodeID]int) (least, most int) {
	least = 1 << 20
	for i := range w.Nodes {
		if n := &w.Nodes[i]; n.serves() {
			least, most = min(least, of[n.ID]), max(most, of[n.ID])
		}
	}
	return least, most
}

// TestPlacementScripts runs the scripts of testdata/placement. A script has one command: next, or settle, which carries
// out all steps. Servers are n00, n01 …; `go test ./scheduler/placement -run TestPlacementScripts -rewrite` replaces
// the output.
//
//	next|settle servers=N shards=N [zones=(a,b)]   the steps of a new cluster after these changes:
//	n03 joins [ZONE]
//	n01 is CONDITION ...                           dead, down, drained, decommissioned, stopping, full, nearly-full
//	shard 1 CONDITION ...                          leader=n00, leader=none, new-leader, was-tried, fenced=n01 (kept,
//	                                               for inspection), fenced-long=n01, replica=n03 (one more)
//	a server is down                               and so nothing is moved for balance
func TestPlacementScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/placement", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var servers, shards int
			zones := []string{""}
			d.ScanArgs(t, "servers", &servers)
			d.ScanArgs(t, "shards", &shards)
			if arg, ok := d.Arg("zones"); ok {
				zones = arg.Vals
			}
			w := newWorld(servers, shards, zones...)
			for line := range strings.Lines(d.Input) {
				if !w.change(strings.Fields(line)) {
					d.Fatalf(t, "unknown line %q", line)
				}
			}
			var out strings.Builder
			for range 100 {
				s, ok := Next(w)
				if !ok {
					fmt.Fprintln(&out, "no step")
					break
				}
				fmt.Fprintln(&out, describe(s))
				if d.Cmd == "next" {
					break
				}
				w.carryOut(s)
			}
			return out.String()
		})
	})
}

// change applies a line of a script; false if it is none.
func (w *World) change(f []string) bool {
	if len(f) < 2 {
		return false
	}
	if strings.Join(f, " ") == "a server is down" {
		w.Balance = false
		return true
	}
	if f[1] == "joins" {
		w.join(strings.Join(f[2:], ""))
		return true
	}
	if f[0] == "shard" {
		var i int
		fmt.Sscan(f[1], &i)
		sh := &w.Shards[i]
		for _, c := range f[2:] {
			what, server, _ := strings.Cut(c, "=")
			node := rowraft.NodeID(server)
			switch what {
			case "leader":
				if sh.Leader = node; server == "none" {
					sh.Leader = ""
				}
			case "new-leader":
				sh.LedLong = false
			case "was-tried":
				sh.LeadTried = true
			case "fenced":
				sh.Fenced = append(sh.Fenced, node)
			case "fenced-long":
				sh.Fenced, sh.FencedLong = append(sh.Fenced, node), append(sh.FencedLong, node)
			case "replica":
				sh.Replicas = append(sh.Replicas, node)
			default:
				return false
			}
		}
		return true
	}
	i := slices.IndexFunc(w.Nodes, func(n Node) bool { return string(n.ID) == f[0] })
	if i < 0 {
		return false
	}
	n := &w.Nodes[i]
	for _, c := range f[2:] {
		switch c {
		case "dead":
			n.Dead, n.Up = true, false
		case "down":
			n.Up = false
		case "drained":
			n.Intent = clustermap.Drain
		case "decommissioned":
			n.Intent = clustermap.Decommission
		case "stopping":
			n.Stopping = true
		case "full":
			n.fill()
		case "nearly-full":
			n.NearlyFull = true
		default:
			return false
		}
	}
	return true
}

// describe prints a step as a script does.
func describe(s Step) string {
	if s.Transfer {
		return fmt.Sprintf("shard %d: %s hands the lead to %s", s.Shard, s.From, s.To)
	}
	reason := strings.ToLower(strings.TrimPrefix(s.Reason.String(), "MOVE_REASON_"))
	switch {
	case s.From == "":
		return fmt.Sprintf("shard %d: a replica for %s (%s)", s.Shard, s.To, reason)
	case s.To == "":
		return fmt.Sprintf("shard %d: no replica on %s any more (%s)", s.Shard, s.From, reason)
	}
	return fmt.Sprintf("shard %d: the replica of %s moves to %s (%s)", s.Shard, s.From, s.To, reason)
}

// From any world the steps end, no replica or lead is left that must move and can, and replicas and leads are as even
// as the zones allow.
func TestPlacementSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SampledFrom([][]string{{""}, {"a", "b", "c"}, {"a", "b"}, {"a", "a", "b", "c"},
			{"a", "b", "c", "d", "e"}}).Draw(t, "zones")
		w := newWorld(rapid.IntRange(3, 9).Draw(t, "servers"), rapid.IntRange(1, 16).Draw(t, "shards"), zones...)
		for range rapid.IntRange(0, 3).Draw(t, "joins") {
			w.join(zones[rapid.IntRange(0, len(zones)-1).Draw(t, "zone")])
		}
		for i := range w.Shards {
			w.Shards[i].Leader = rapid.SampledFrom(w.Shards[i].Replicas).Draw(t, "leader")
		}
		for range rapid.IntRange(0, 2).Draw(t, "bad") {
			n := &w.Nodes[rapid.IntRange(0, len(w.Nodes)-1).Draw(t, "server")]
			switch rapid.IntRange(0, 4).Draw(t, "how") {
			case 0:
				n.Up, n.Dead = false, true
			case 1:
				n.Intent = clustermap.Decommission
			case 2:
				n.fill()
			case 3:
				n.NearlyFull = true
			default:
				n.Intent = clustermap.Drain
			}
		}
		ta := total(w)
		for i := range w.Shards { // a server that is down leads no shard
			sh := &w.Shards[i]
			if !ta.node[sh.Leader].Up {
				sh.Leader = ""
				for _, r := range sh.Replicas {
					if ta.node[r].Up {
						sh.Leader = r
					}
				}
			}
		}
		w.carryOutAll(t)
		ta = total(w)
		free := 0
		for i := range w.Nodes {
			if w.Nodes[i].accepts() {
				free++
			}
		}
		for _, sh := range w.Shards {
			if sh.Leader == "" {
				continue // no step may touch it
			}
			if on := make(map[rowraft.NodeID]bool); free >= 3 {
				for _, r := range sh.Replicas {
					if n := ta.node[r]; n.Dead || n.Intent == clustermap.Decommission || on[r] {
						t.Fatalf("shard %+v: its replica on %s stays; servers %+v", sh, r, w.Nodes)
					}
					on[r] = true
				}
			}
			successors := count(sh.Replicas, func(r rowraft.NodeID) bool { return ta.node[r].serves() })
			if !ta.node[sh.Leader].serves() && successors > 0 {
				t.Fatalf("shard %+v: the lead stays; servers %+v", sh, w.Nodes)
			}
			roomy := count(sh.Replicas, func(r rowraft.NodeID) bool { n := ta.node[r]; return n.serves() && !n.NearlyFull })
			full := count(sh.Replicas, func(r rowraft.NodeID) bool { n := ta.node[r]; return n.Full || !n.Up })
			if ta.node[sh.Leader].Full && roomy > 0 && 2*full < len(sh.Replicas) {
				t.Fatalf("shard %+v: a full server keeps the lead; servers %+v", sh, w.Nodes)
			}
		}
		all := !slices.ContainsFunc(w.Nodes, func(n Node) bool {
			return n.Intent == clustermap.Drain || n.Dead || n.NearlyFull
		})
		if least, most := spread(w, ta.load); len(zones) == 1 && all && free >= 3 && most-least > 1 {
			t.Fatalf("servers have %d to %d Replicas: %v", least, most, ta.load)
		}
		for _, sh := range w.Shards { // no single move improves the zones
			for _, from := range sh.Replicas {
				for _, n := range w.Nodes {
					if sh.Leader != "" && ta.node[from].serves() && n.accepts() && !sh.on(n.ID) &&
						ta.inZone(&sh, from, n.ID) < ta.inZone(&sh, from, from) {
						t.Fatalf("shard %+v: %s is in a better zone than %s", sh, n.ID, from)
					}
				}
			}
		}
		if least, most := spread(w, ta.leads); len(zones) == 1 && all && free == len(w.Nodes) && most-least > 1 {
			t.Fatalf("servers lead %d to %d shards: %+v", least, most, w.Shards)
		}
	})
}

// A new cluster has one replica of each shard in each of three zones, for any names of the zones.
func TestShardsAreMadeAcrossZones(t *testing.T) {
	for _, zones := range [][]string{{"a", "b", "c"}, {"a", "a", "b", "b", "c", "c"}, {"a", "b", "b", "c", "c", "a"}} {
		w := newWorld(6, 12, zones...)
		ta := total(w)
		for i := range w.Shards {
			sh := &w.Shards[i]
			for _, r := range sh.Replicas {
				if n := ta.inZone(sh, r, r); n > 0 {
					t.Errorf("zones %v: shard %d has replicas on %v, two in one zone", zones, sh.ID, sh.Replicas)
				}
			}
		}
		if least, most := spread(w, ta.load); least != 6 || most != 6 {
			t.Errorf("zones %v: %d to %d replicas on a server, want 6", zones, least, most)
		}
	}
}
