package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// fenceLong marks the replica on a server as fenced for so long that it is to be replaced.
func (sh *Shard) fenceLong(node rowraft.NodeID) {
	sh.Fenced, sh.FencedLong = append(sh.Fenced, node), append(sh.FencedLong, node)
}

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
		if n := len(w.Shards[s.Shard].Replicas); !s.Transfer && s.To != "" && s.From != "" && n != len(before.Shards[s.Shard].Replicas) {
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

func TestPlacement(t *testing.T) {
	const (
		dead, gone    = rowraftv1.MoveReason_MOVE_REASON_DEAD, rowraftv1.MoveReason_MOVE_REASON_DECOMMISSION
		missing, zone = rowraftv1.MoveReason_MOVE_REASON_MISSING, rowraftv1.MoveReason_MOVE_REASON_ZONE
		balance, fenc = rowraftv1.MoveReason_MOVE_REASON_BALANCE, rowraftv1.MoveReason_MOVE_REASON_FENCED
	)
	for _, tc := range []struct {
		name  string
		world func() *World
		want  Step
		none  bool
	}{
		{name: "three servers with all replicas need no step", world: func() *World { return newWorld(3, 6, "") }, none: true},
		{name: "a server that joins gets replicas", world: func() *World { w := newWorld(3, 2, ""); w.join(""); return w }, want: Step{From: "n01", To: "n03", Reason: balance}},
		{name: "no move for balance while a server is down", world: func() *World { w := newWorld(3, 2, ""); w.join(""); w.Balance = false; return w }, none: true},
		{name: "the lead of a drained server moves first", world: func() *World {
			w := newWorld(4, 4, "")
			w.Nodes[1].Intent = clustermap.Drain
			w.Nodes[2].Dead, w.Nodes[2].Up = true, false
			return w
		},
			want: Step{Shard: 1, From: "n01", To: "n03", Transfer: true}},
		{name: "the lead of a server that stops moves", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[0].Stopping = true; return w }, want: Step{From: "n00", To: "n01", Transfer: true}},
		{name: "the lead of a server with a full disk moves", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[0].fill(); return w }, want: Step{From: "n00", To: "n01", Transfer: true}},
		{name: "a lead moves to the server with room on the disk", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[0].fill(); w.Nodes[1].NearlyFull = true; return w }, want: Step{From: "n00", To: "n02", Transfer: true}},
		{name: "no lead moves from a full disk to a nearly full one", world: func() *World {
			w := newWorld(3, 1, "")
			w.Nodes[0].fill()
			w.Nodes[1].NearlyFull, w.Nodes[2].NearlyFull = true, true
			return w
		}, none: true},
		{name: "the lead stays when two of three disks are full", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[0].fill(); w.Nodes[1].fill(); return w }, none: true},
		{name: "the lead stays when one disk is full and one server is down", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[0].fill(); w.Nodes[1].Up = false; return w }, none: true},
		{name: "the lead of a drained server moves even to a full disk", world: func() *World {
			w := newWorld(3, 1, "")
			w.Nodes[0].Intent, w.Nodes[1].Up = clustermap.Drain, false
			w.Nodes[2].fill()
			return w
		}, want: Step{From: "n00", To: "n02", Transfer: true}},
		{name: "a full server receives no replica", world: func() *World {
			w := newWorld(4, 1, "")
			w.Nodes[2].Dead, w.Nodes[2].Up = true, false
			w.Nodes[3].fill()
			return w
		}, none: true},
		{name: "a full server receives no lead for balance", world: func() *World {
			w := newWorld(3, 3, "")
			w.Shards[1].Leader, w.Shards[2].Leader = "n00", "n00"
			w.Nodes[1].fill()
			w.Nodes[2].NearlyFull = true
			return w
		}, none: true},
		{name: "no second transfer a moment later", world: func() *World {
			w := newWorld(3, 1, "")
			w.Nodes[0].Stopping, w.Shards[0].LeadTried = true, true
			return w
		}, none: true},
		{name: "a dead server's replica is rebuilt", world: func() *World { w := newWorld(4, 1, ""); w.Nodes[2].Dead, w.Nodes[2].Up = true, false; return w }, want: Step{From: "n02", To: "n03", Reason: dead}},
		{name: "a shard without a leader is not changed", world: func() *World {
			w := newWorld(4, 1, "")
			w.Nodes[2].Dead, w.Nodes[2].Up, w.Shards[0].Leader = true, false, ""
			return w
		}, none: true},
		{name: "a silent server is not dead yet", world: func() *World { w := newWorld(4, 1, ""); w.Nodes[2].Up, w.Balance = false, false; return w }, none: true},
		{name: "a replica stays if no server can receive it", world: func() *World { w := newWorld(3, 1, ""); w.Nodes[2].Dead, w.Nodes[2].Up = true, false; return w }, none: true},
		{name: "a drained server receives no replica", world: func() *World {
			w := newWorld(4, 1, "")
			w.Nodes[2].Dead, w.Nodes[2].Up, w.Nodes[3].Intent = true, false, clustermap.Drain
			return w
		}, none: true},
		{name: "a decommissioned server is emptied", world: func() *World { w := newWorld(4, 1, ""); w.Nodes[1].Intent = clustermap.Decommission; return w }, want: Step{From: "n01", To: "n03", Reason: gone}},
		{name: "the dead come before the decommissioned", world: func() *World {
			w := newWorld(5, 1, "")
			w.Nodes[1].Intent, w.Nodes[2].Dead, w.Nodes[2].Up = clustermap.Decommission, true, false
			return w
		},
			want: Step{From: "n02", To: "n03", Reason: dead}},
		{name: "a shard with two replicas gets a third", world: func() *World { w := newWorld(2, 1, ""); w.join(""); return w }, want: Step{To: "n02", Reason: missing}},
		{name: "two replicas in one zone are separated", world: func() *World {
			w := newWorld(2, 1, "a", "b")
			w.join("b")
			w.join("c")
			w.Shards[0].Replicas = append(w.Shards[0].Replicas, "n02")
			return w
		},
			want: Step{From: "n01", To: "n03", Reason: zone}},
		{name: "a replica is rebuilt in a zone of its own", world: func() *World {
			w := newWorld(3, 1, "a", "b", "c")
			w.join("a")
			w.join("c")
			w.Nodes[2].Dead, w.Nodes[2].Up = true, false
			return w
		},
			want: Step{From: "n02", To: "n04", Reason: dead}},
		{name: "a fenced replica moves", world: func() *World { w := newWorld(4, 1, ""); w.Shards[0].fenceLong("n01"); return w }, want: Step{From: "n01", To: "n03", Reason: fenc}},
		{name: "a fenced replica is removed if no other server is there", world: func() *World { w := newWorld(3, 1, ""); w.Shards[0].fenceLong("n01"); return w }, want: Step{From: "n01", Reason: fenc}},
		{name: "a fenced replica stays while another replica is down", world: func() *World {
			w := newWorld(3, 1, "")
			w.Shards[0].fenceLong("n01")
			w.Nodes[2].Up, w.Balance = false, false
			return w
		}, none: true},
		{name: "a fenced replica stays while its disk is kept for inspection", world: func() *World {
			w := newWorld(4, 1, "")
			w.Shards[0].Fenced = []rowraft.NodeID{"n01"}
			return w
		}, none: true},
		{name: "leads are balanced", world: func() *World {
			w := newWorld(3, 3, "")
			w.Shards[1].Leader = "n00"
			w.Shards[2].Leader = "n00"
			return w
		}, want: Step{From: "n00", To: "n01", Transfer: true}},
		{name: "a lead that is new stays", world: func() *World {
			w := newWorld(3, 3, "")
			w.Shards[1], w.Shards[2] = Shard{ID: 1, Leader: "n00", Replicas: w.Shards[1].Replicas}, Shard{ID: 2, Leader: "n00", Replicas: w.Shards[2].Replicas}
			w.Shards[0].LedLong = false
			return w
		}, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := Next(tc.world())
			if ok == tc.none || got != tc.want {
				t.Errorf("step %+v (%v), want %+v", got, ok, tc.want)
			}
		})
	}
}

// From any world the steps end, no replica or lead is left that must move and can, and replicas and leads are as even
// as the zones allow.
func TestPlacementSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SampledFrom([][]string{{""}, {"a", "b", "c"}, {"a", "b"}, {"a", "a", "b", "c"}, {"a", "b", "c", "d", "e"}}).Draw(t, "zones")
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
		all := !slices.ContainsFunc(w.Nodes, func(n Node) bool { return n.Intent == clustermap.Drain || n.Dead || n.NearlyFull })
		if least, most := spread(w, ta.load); len(zones) == 1 && all && free >= 3 && most-least > 1 {
			t.Fatalf("servers have %d to %d Replicas: %v", least, most, ta.load)
		}
		for _, sh := range w.Shards { // no single move improves the zones
			for _, from := range sh.Replicas {
				for _, n := range w.Nodes {
					if sh.Leader != "" && ta.node[from].serves() && n.accepts() && !sh.on(n.ID) && ta.inZone(&sh, from, n.ID) < ta.inZone(&sh, from, from) {
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
