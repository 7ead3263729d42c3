package scheduler

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// fences is what a shard looks like long after its replica on a server was fenced.
func (sh *worldShard) fences(node rowraft.NodeID) {
	sh.fenced, sh.lost = append(sh.fenced, node), append(sh.lost, node)
}

// isFull is what a server with a full disk looks like.
func (n *worldNode) isFull() { n.full, n.tight = true, true }

// take changes the world as the step says, at once.
func (w *world) take(s step) {
	sh := &w.shards[s.shard]
	if s.transfer {
		sh.leader = s.to
		return
	}
	if s.from != "" {
		sh.replicas = slices.DeleteFunc(slices.Clone(sh.replicas), func(r rowraft.NodeID) bool { return r == s.from })
		sh.fenced = slices.DeleteFunc(slices.Clone(sh.fenced), func(r rowraft.NodeID) bool { return r == s.from })
		sh.lost = slices.DeleteFunc(slices.Clone(sh.lost), func(r rowraft.NodeID) bool { return r == s.from })
	}
	if s.to != "" {
		sh.replicas = append(slices.Clone(sh.replicas), s.to)
	}
	if sh.leader == s.from {
		sh.leader = s.to
	}
}

// settle takes steps until there are none and returns how many.
func (w *world) settle(t tb) (steps int) {
	t.Helper()
	for {
		s, ok := nextStep(w)
		if !ok {
			return steps
		}
		if steps++; steps > 2000 {
			t.Fatalf("it does not end: %+v", s)
		}
		before := *w
		w.take(s)
		if n := len(w.shards[s.shard].replicas); !s.transfer && s.to != "" && s.from != "" && n != len(before.shards[s.shard].replicas) {
			t.Fatalf("step %+v: the shard has %d replicas", s, n)
		}
	}
}

// aWorld is n servers in zones, one after the other, and shards as they are made.
func aWorld(n, shards int, zones ...string) *world {
	w := &world{settled: true}
	var nodes []clustermap.Node
	for i := range n {
		zone := zones[i%len(zones)]
		id := rowraft.NodeID(fmt.Sprintf("n%02d", i))
		w.nodes = append(w.nodes, worldNode{id: id, zone: zone, up: true})
		node := clustermap.Node{ID: id, Name: string(id)}
		if zone != "" {
			node.Labels = clustermap.ZoneLabel + "=" + zone
		}
		nodes = append(nodes, node)
	}
	id := 0
	for _, sh := range PlaceShards(nodes, shards, func() string { id++; return fmt.Sprint(id) }) {
		ws := worldShard{id: sh.ID, rested: true, leader: sh.Replicas[0].Node}
		for _, r := range sh.Replicas {
			ws.replicas = append(ws.replicas, r.Node)
		}
		w.shards = append(w.shards, ws)
	}
	return w
}

// join adds a server.
func (w *world) join(zone string) *worldNode {
	w.nodes = append(w.nodes, worldNode{id: rowraft.NodeID(fmt.Sprintf("n%02d", len(w.nodes))), zone: zone, up: true})
	return &w.nodes[len(w.nodes)-1]
}

// spread is the least and the most that any server which takes replicas has.
func spread(w *world, of map[rowraft.NodeID]int) (least, most int) {
	least = 1 << 20
	for i := range w.nodes {
		if n := &w.nodes[i]; n.serves() {
			least, most = min(least, of[n.id]), max(most, of[n.id])
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
		world func() *world
		want  step
		none  bool
	}{
		{name: "three servers with everything want nothing", world: func() *world { return aWorld(3, 6, "") }, none: true},
		{name: "a server that joins gets replicas", world: func() *world { w := aWorld(3, 2, ""); w.join(""); return w }, want: step{from: "n01", to: "n03", reason: balance}},
		{name: "not while somebody is away", world: func() *world { w := aWorld(3, 2, ""); w.join(""); w.settled = false; return w }, none: true},
		{name: "a drained server's lead goes first", world: func() *world {
			w := aWorld(4, 4, "")
			w.nodes[1].intent = clustermap.Drain
			w.nodes[2].dead, w.nodes[2].up = true, false
			return w
		},
			want: step{shard: 1, from: "n01", to: "n03", transfer: true}},
		{name: "so does that of a server that stops", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].ending = true; return w }, want: step{from: "n00", to: "n01", transfer: true}},
		{name: "and of one with a full disk", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].isFull(); return w }, want: step{from: "n00", to: "n01", transfer: true}},
		{name: "to one with room", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].isFull(); w.nodes[1].tight = true; return w }, want: step{from: "n00", to: "n02", transfer: true}},
		{name: "or to nobody", world: func() *world {
			w := aWorld(3, 1, "")
			w.nodes[0].isFull()
			w.nodes[1].tight, w.nodes[2].tight = true, true
			return w
		}, none: true},
		{name: "two full disks are kept from running over", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].isFull(); w.nodes[1].isFull(); return w }, none: true},
		{name: "one that is full and one that is away as well", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].isFull(); w.nodes[1].up = false; return w }, none: true},
		{name: "a drained server's lead goes to a full one rather than nowhere", world: func() *world {
			w := aWorld(3, 1, "")
			w.nodes[0].intent, w.nodes[1].up = clustermap.Drain, false
			w.nodes[2].isFull()
			return w
		}, want: step{from: "n00", to: "n02", transfer: true}},
		{name: "a full server takes no replica", world: func() *world {
			w := aWorld(4, 1, "")
			w.nodes[2].dead, w.nodes[2].up = true, false
			w.nodes[3].isFull()
			return w
		}, none: true},
		{name: "nor a lead for the sake of balance", world: func() *world {
			w := aWorld(3, 3, "")
			w.shards[1].leader, w.shards[2].leader = "n00", "n00"
			w.nodes[1].isFull()
			w.nodes[2].tight = true
			return w
		}, none: true},
		{name: "not again a moment later", world: func() *world { w := aWorld(3, 1, ""); w.nodes[0].ending, w.shards[0].held = true, true; return w }, none: true},
		{name: "a dead server's replica is rebuilt", world: func() *world { w := aWorld(4, 1, ""); w.nodes[2].dead, w.nodes[2].up = true, false; return w }, want: step{from: "n02", to: "n03", reason: dead}},
		{name: "of a shard without a leader it is not", world: func() *world {
			w := aWorld(4, 1, "")
			w.nodes[2].dead, w.nodes[2].up, w.shards[0].leader = true, false, ""
			return w
		}, none: true},
		{name: "a silent server is not dead yet", world: func() *world { w := aWorld(4, 1, ""); w.nodes[2].up, w.settled = false, false; return w }, none: true},
		{name: "where nobody can take it it stays", world: func() *world { w := aWorld(3, 1, ""); w.nodes[2].dead, w.nodes[2].up = true, false; return w }, none: true},
		{name: "a drained server takes nothing", world: func() *world {
			w := aWorld(4, 1, "")
			w.nodes[2].dead, w.nodes[2].up, w.nodes[3].intent = true, false, clustermap.Drain
			return w
		}, none: true},
		{name: "a decommissioned one is emptied", world: func() *world { w := aWorld(4, 1, ""); w.nodes[1].intent = clustermap.Decommission; return w }, want: step{from: "n01", to: "n03", reason: gone}},
		{name: "the dead come before the decommissioned", world: func() *world {
			w := aWorld(5, 1, "")
			w.nodes[1].intent, w.nodes[2].dead, w.nodes[2].up = clustermap.Decommission, true, false
			return w
		},
			want: step{from: "n02", to: "n03", reason: dead}},
		{name: "a shard with two replicas gets a third", world: func() *world { w := aWorld(2, 1, ""); w.join(""); return w }, want: step{to: "n02", reason: missing}},
		{name: "two of one zone part", world: func() *world {
			w := aWorld(2, 1, "a", "b")
			w.join("b")
			w.join("c")
			w.shards[0].replicas = append(w.shards[0].replicas, "n02")
			return w
		},
			want: step{from: "n01", to: "n03", reason: zone}},
		{name: "a replica is rebuilt in a zone of its own", world: func() *world {
			w := aWorld(3, 1, "a", "b", "c")
			w.join("a")
			w.join("c")
			w.nodes[2].dead, w.nodes[2].up = true, false
			return w
		},
			want: step{from: "n02", to: "n04", reason: dead}},
		{name: "a fenced replica moves", world: func() *world { w := aWorld(4, 1, ""); w.shards[0].fences("n01"); return w }, want: step{from: "n01", to: "n03", reason: fenc}},
		{name: "or leaves to come back", world: func() *world { w := aWorld(3, 1, ""); w.shards[0].fences("n01"); return w }, want: step{from: "n01", reason: fenc}},
		{name: "not while another one is down", world: func() *world {
			w := aWorld(3, 1, "")
			w.shards[0].fences("n01")
			w.nodes[2].up, w.settled = false, false
			return w
		}, none: true},
		{name: "nor while its disk is kept to be looked at", world: func() *world {
			w := aWorld(4, 1, "")
			w.shards[0].fenced = []rowraft.NodeID{"n01"}
			return w
		}, none: true},
		{name: "leads even out", world: func() *world { w := aWorld(3, 3, ""); w.shards[1].leader = "n00"; w.shards[2].leader = "n00"; return w }, want: step{from: "n00", to: "n01", transfer: true}},
		{name: "when they have rested", world: func() *world {
			w := aWorld(3, 3, "")
			w.shards[1], w.shards[2] = worldShard{id: 1, leader: "n00", replicas: w.shards[1].replicas}, worldShard{id: 2, leader: "n00", replicas: w.shards[2].replicas}
			w.shards[0].rested = false
			return w
		}, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := nextStep(tc.world())
			if ok == tc.none || got != tc.want {
				t.Errorf("step %+v (%v), want %+v", got, ok, tc.want)
			}
		})
	}
}

// From whatever world: the steps end, nothing is left that must move and can, and replicas
// and leads are as even as the zones allow.
func TestPlacementSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SampledFrom([][]string{{""}, {"a", "b", "c"}, {"a", "b"}, {"a", "a", "b", "c"}, {"a", "b", "c", "d", "e"}}).Draw(t, "zones")
		w := aWorld(rapid.IntRange(3, 9).Draw(t, "servers"), rapid.IntRange(1, 16).Draw(t, "shards"), zones...)
		for range rapid.IntRange(0, 3).Draw(t, "joins") {
			w.join(zones[rapid.IntRange(0, len(zones)-1).Draw(t, "zone")])
		}
		for i := range w.shards {
			w.shards[i].leader = rapid.SampledFrom(w.shards[i].replicas).Draw(t, "leader")
		}
		for range rapid.IntRange(0, 2).Draw(t, "bad") {
			n := &w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(t, "who")]
			switch rapid.IntRange(0, 4).Draw(t, "how") {
			case 0:
				n.up, n.dead = false, true
			case 1:
				n.intent = clustermap.Decommission
			case 2:
				n.isFull()
			case 3:
				n.tight = true
			default:
				n.intent = clustermap.Drain
			}
		}
		ta := tally(w)
		for i := range w.shards { // who is dead leads nothing
			sh := &w.shards[i]
			if !ta.node[sh.leader].up {
				sh.leader = ""
				for _, r := range sh.replicas {
					if ta.node[r].up {
						sh.leader = r
					}
				}
			}
		}
		w.settle(t)
		ta = tally(w)
		free := count(w.nodes, func(n worldNode) bool { return n.takes() })
		for _, sh := range w.shards {
			if sh.leader == "" {
				continue // no step may touch it
			}
			if on := make(map[rowraft.NodeID]bool); free >= 3 {
				for _, r := range sh.replicas {
					if n := ta.node[r]; n.dead || n.intent == clustermap.Decommission || on[r] {
						t.Fatalf("shard %+v: its replica on %s stays, of %+v", sh, r, w.nodes)
					}
					on[r] = true
				}
			}
			heirs := count(sh.replicas, func(r rowraft.NodeID) bool { return ta.node[r].serves() })
			if !ta.node[sh.leader].serves() && heirs > 0 {
				t.Fatalf("shard %+v: the lead stays, of %+v", sh, w.nodes)
			}
			roomy := count(sh.replicas, func(r rowraft.NodeID) bool { n := ta.node[r]; return n.serves() && !n.tight })
			full := count(sh.replicas, func(r rowraft.NodeID) bool { n := ta.node[r]; return n.full || !n.up })
			if ta.node[sh.leader].full && roomy > 0 && 2*full < len(sh.replicas) {
				t.Fatalf("shard %+v: a full server keeps the lead, of %+v", sh, w.nodes)
			}
		}
		all := !slices.ContainsFunc(w.nodes, func(n worldNode) bool { return n.intent == clustermap.Drain || n.dead || n.tight })
		if least, most := spread(w, ta.load); len(zones) == 1 && all && free >= 3 && most-least > 1 {
			t.Fatalf("servers have %d to %d replicas: %v", least, most, ta.load)
		}
		for _, sh := range w.shards { // nobody could do better alone
			for _, from := range sh.replicas {
				for _, n := range w.nodes {
					if sh.leader != "" && ta.node[from].serves() && n.takes() && !sh.on(n.id) && ta.crowd(&sh, from, n.id) < ta.crowd(&sh, from, from) {
						t.Fatalf("shard %+v: %s would be another zone than %s", sh, n.id, from)
					}
				}
			}
		}
		if least, most := spread(w, ta.leads); len(zones) == 1 && all && free == len(w.nodes) && most-least > 1 {
			t.Fatalf("servers lead %d to %d shards: %+v", least, most, w.shards)
		}
	})
}

// A new cluster has a replica of each shard in each of three zones, whatever the names are.
func TestShardsAreMadeAcrossZones(t *testing.T) {
	for _, zones := range [][]string{{"a", "b", "c"}, {"a", "a", "b", "b", "c", "c"}, {"a", "b", "b", "c", "c", "a"}} {
		w := aWorld(6, 12, zones...)
		ta := tally(w)
		for i := range w.shards {
			sh := &w.shards[i]
			for _, r := range sh.replicas {
				if n := ta.crowd(sh, r, r); n > 0 {
					t.Errorf("zones %v: shard %d has replicas on %v, two in one zone", zones, sh.id, sh.replicas)
				}
			}
		}
		if least, most := spread(w, ta.load); least != 6 || most != 6 {
			t.Errorf("zones %v: %d to %d replicas on a server, want 6", zones, least, most)
		}
	}
}
