package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/e2e/history"
)

// Leading is a sight of a replica that leads: in its log lines, its status, or the
// term that a reply carries.
type Leading struct {
	Shard   int    `json:"shard"`
	Term    uint64 `json:"term"`
	Replica string `json:"replica"`
	At      int64  `json:"at_ns"` // on the history's clock; only for the text
}

// SameReplica reports whether two texts name one replica: by its id, or as logs do by the first characters of the id
// and the name of its server, as in "7f3be18a@n2".
func SameReplica(a, b string) bool {
	x, _, shortA := strings.Cut(a, "@")
	y, _, shortB := strings.Cut(b, "@")
	return x == y || shortA && strings.HasPrefix(y, x) || shortB && strings.HasPrefix(x, y)
}

// Leaders reports shards that two replicas led in one term. A term has one leader
// because a replica votes once in it, on disk, and two majorities share a replica;
// seen in two terms at once, two leaders are no violation. Ops of a violation are
// positions in seen.
func Leaders(seen []Leading) []Violation {
	type place struct {
		shard int
		term  uint64
	}
	var f findings
	first := make(map[place]int)
	told := make(map[place]bool)
	for i, s := range seen {
		p := place{s.Shard, s.Term}
		j, ok := first[p]
		if !ok {
			first[p] = i
			continue
		}
		if other := seen[j]; !SameReplica(other.Replica, s.Replica) && !told[p] {
			told[p] = true
			f.list = append(f.list, Violation{Rule: RuleLeader, Row: -1, Ops: []int{j, i}, Text: fmt.Sprintf(
				"shard %d had two leaders in term %d: %s, seen at %s, and %s, seen at %s",
				s.Shard, s.Term, other.Replica, at(other.At), s.Replica, at(s.At))})
		}
	}
	return f.list
}

// DigestAt is the digest of a replica's rows at an applied index.
type DigestAt struct {
	Shard   int    `json:"shard"`
	Replica string `json:"replica"`
	Index   uint64 `json:"index"`
	Digest  string `json:"digest"`
}

// Digests reports replicas whose rows differ at one applied index, and replicas
// that differ from themselves, as after a restart that replayed otherwise. Apply
// depends on state and entry alone, and the log at an index is one. Ops of a
// violation are positions in seen.
func Digests(seen []DigestAt) []Violation {
	type place struct {
		shard int
		index uint64
	}
	var f findings
	first := make(map[place]int)
	told := make(map[place]bool)
	for i, s := range seen {
		p := place{s.Shard, s.Index}
		j, ok := first[p]
		if !ok {
			first[p] = i
			continue
		}
		if other := seen[j]; other.Digest != s.Digest && !told[p] {
			told[p] = true
			f.list = append(f.list, Violation{Rule: RuleDigest, Row: -1, Ops: []int{j, i}, Text: fmt.Sprintf(
				"shard %d at index %d has digest %s on replica %s, %s on replica %s",
				s.Shard, s.Index, other.Digest, other.Replica, s.Digest, s.Replica)})
		}
	}
	return f.list
}

// Shared counts the (shard, index) at which Digests had two replicas or more to
// compare. A round with none has compared nothing.
func Shared(seen []DigestAt) int {
	type place struct {
		shard int
		index uint64
	}
	first := make(map[place]string)
	shared := make(map[place]bool)
	for _, s := range seen {
		p := place{s.Shard, s.Index}
		if r, ok := first[p]; ok && !SameReplica(r, s.Replica) {
			shared[p] = true
		} else if !ok {
			first[p] = s.Replica
		}
	}
	return len(shared)
}

// Reply is the applied index that a shard's reply carried.
type Reply struct {
	Client int          `json:"client"`
	Shard  int          `json:"shard"`
	Kind   history.Kind `json:"kind"`           // Push (acknowledged; or a delete) or Pull
	Mode   string       `json:"mode,omitempty"` // of a pull
	Call   int64        `json:"call_ns"`
	Return int64        `json:"return_ns"`
	Index  uint64       `json:"index"`

	// Of a bounded pull: the lag that it allows (0: any), and what it claims.
	MaxLag uint64 `json:"max_lag,omitempty"`
	Age    int64  `json:"age_ns,omitempty"`
	Lag    uint64 `json:"lag,omitempty"`
}

// since is the moment such that the reply promises the indices of all replies before it, but
// for Lag.
func (r *Reply) since() int64 {
	if r.Mode == ModeBounded {
		return r.Call - r.Age
	}
	return r.Call
}

// Replies lists the indices that the ops of a history carry.
func Replies(ops []history.Op) []Reply {
	var out []Reply
	for i := range ops {
		op := &ops[i]
		kind := op.Kind
		if kind == history.Delete {
			kind = history.Push
		}
		if op.Outcome != history.OK || kind != history.Push && kind != history.Pull {
			continue
		}
		for _, shard := range slices.Sorted(maps.Keys(op.Index)) {
			out = append(out, Reply{Client: op.Client, Shard: shard, Kind: kind, Mode: op.Mode, Call: op.Call, Return: op.Return,
				Index: op.Index[shard], MaxLag: op.MaxLag, Age: op.Age, Lag: op.Lag})
		}
	}
	return out
}

// Mono reports replies whose index is behind what is promised. An index that any
// reply carries was committed and applied, so a linearizable read called later, of
// any client, waits for a read index no smaller. A leader read is called with the
// index of its client's last acknowledged push as minimum, and owes no more: two
// leader reads of one client may run backwards. A bounded read has what had been told
// before its call less the age that it claims, or lacks as many entries as it claims. If it allows any lag, a server
// may answer it from copies of rows: their index is the highest that the server knows them to have, and they may have
// more. Then only the rows show what the read has (Vec). Ops of a violation are positions in replies; indices of
// different table epochs are not comparable, so call it for each epoch.
func Mono(replies []Reply) []Violation {
	var f findings
	bySince, byReturn := make([]int, len(replies)), make([]int, len(replies))
	for i := range replies {
		bySince[i], byReturn[i] = i, i
	}
	slices.SortStableFunc(bySince, func(a, b int) int { return cmp.Compare(replies[a].since(), replies[b].since()) })
	slices.SortStableFunc(byReturn, func(a, b int) int { return cmp.Compare(replies[a].Return, replies[b].Return) })
	type session struct{ client, shard int }
	best := make(map[int]int)      // by shard: the reply with the largest index so far
	acked := make(map[session]int) // the same of a client's pushes
	for _, i := range bySince {
		r := &replies[i]
		for len(byReturn) > 0 && replies[byReturn[0]].Return < r.since() {
			j := byReturn[0]
			byReturn = byReturn[1:]
			keep(best, replies[j].Shard, j, replies)
			if replies[j].Kind == history.Push {
				keep(acked, session{replies[j].Client, replies[j].Shard}, j, replies)
			}
		}
		if r.Kind != history.Pull || r.Mode == ModeBounded && r.MaxLag == 0 {
			continue
		}
		j, ok := acked[session{r.Client, r.Shard}]
		if r.Mode != ModeLeader {
			j, ok = best[r.Shard]
		}
		if ok && r.Index+r.Lag < replies[j].Index {
			f.list = append(f.list, behind(replies, j, i))
		}
	}
	return f.list
}

// behind is the violation that reply i has less than reply j.
func behind(replies []Reply, j, i int) Violation {
	r, b := &replies[i], &replies[j]
	claim := ""
	if r.Mode == ModeBounded {
		claim = fmt.Sprintf(" and claims an age of %s and a lag of %d", at(r.Age), r.Lag)
	}
	return Violation{Rule: RuleIndex, Row: -1, Ops: []int{j, i}, Text: fmt.Sprintf(
		"shard %d: the %s read of client %d, called at %s, shows index %d%s, after the reply to a %s of client %d with "+
			"index %d at %s",
		r.Shard, r.Mode, r.Client, at(r.Call), r.Index, claim, b.Kind, b.Client, b.Index, at(b.Return))}
}

// keep sets m[k] to j if reply j has a larger index than the one there.
func keep[K comparable](m map[K]int, k K, j int, replies []Reply) {
	if i, ok := m[k]; !ok || replies[i].Index < replies[j].Index {
		m[k] = j
	}
}
