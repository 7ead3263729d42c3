package check

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft/e2e/history"
)

func texts(vs []Violation) (out []string) {
	for _, v := range vs {
		out = append(out, v.String())
	}
	return out
}

func TestLeaders(t *testing.T) {
	for _, tc := range []struct {
		name string
		seen []Leading
		want []string
	}{
		{"one leader seen often, another in the next term", []Leading{{1, 4, "a", 1}, {1, 4, "a", 2}, {1, 5, "b", 3},
			{1, 4, "a", 4}}, nil},
		{"shards do not share terms", []Leading{{1, 4, "a", 1}, {2, 4, "b", 2}}, nil},
		{"one leader by its id and as logs name it", []Leading{{1, 4, "7f3be18a@n2", 1}, {1, 4, "7f3be18a-6d2c", 2},
			{1, 4, "7f3be18a@n2", 3}}, nil},
		{"two leaders as logs name them", []Leading{{1, 4, "7f3be18a@n2", 0}, {1, 4, "8f3be18a-6d2c", 0}},
			[]string{"leader: shard 1 had two leaders in term 4: 7f3be18a@n2, seen at 0s, and 8f3be18a-6d2c, seen at 0s"}},
		{"two leaders of a term are told once", []Leading{{1, 4, "a", 1e9}, {1, 4, "b", 2e9}, {1, 4, "b", 3e9}},
			[]string{"leader: shard 1 had two leaders in term 4: a, seen at 1s, and b, seen at 2s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := texts(Leaders(tc.seen)); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDigests(t *testing.T) {
	for _, tc := range []struct {
		name   string
		seen   []DigestAt
		shared int
		want   []string
	}{
		{"equal at equal indices", []DigestAt{{1, "a", 7, "x"}, {1, "b", 7, "x"}, {1, "b", 8, "y"}, {2, "b", 7, "z"}}, 1,
			nil},
		{"one replica differs", []DigestAt{{1, "a", 7, "x"}, {1, "b", 7, "x"}, {1, "c", 7, "y"}, {1, "c", 7, "y"}}, 1,
			[]string{"digest: shard 1 at index 7 has digest x on replica a, y on replica c"}},
		{"a replica differs from itself", []DigestAt{{1, "a", 7, "x"}, {1, "a", 7, "y"}}, 0,
			[]string{"digest: shard 1 at index 7 has digest x on replica a, y on replica a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := texts(Digests(tc.seen)); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := Shared(tc.seen); got != tc.shared {
				t.Errorf("%d compared, want %d", got, tc.shared)
			}
		})
	}
}

func TestMono(t *testing.T) {
	const lin, lead = ModeLinearizable, ModeLeader
	pull := func(client int, mode string, call int64, index uint64) Reply {
		return Reply{Client: client, Shard: 1, Kind: history.Pull, Mode: mode, Call: call, Return: call + 1, Index: index}
	}
	push := func(client int, call int64, index uint64) Reply {
		return Reply{Client: client, Shard: 1, Kind: history.Push, Call: call, Return: call + 1, Index: index}
	}
	bounded := func(call, age int64, index, lag uint64) Reply {
		r := pull(7, ModeBounded, call, index)
		r.MaxLag, r.Age, r.Lag = 100, age, lag
		return r
	}
	for _, tc := range []struct {
		name    string
		replies []Reply
		want    []string
	}{
		{"leader reads of one client may run backwards", []Reply{pull(0, lead, 1, 9), pull(0, lead, 3, 8)}, nil},
		{"linearizable reads may not, of one client or two", []Reply{pull(0, lin, 1, 9), pull(1, lin, 3, 8)},
			[]string{"index: shard 1: the linearizable read of client 1, called at 3ns, shows index 8, after the reply to a " +
				"pull of client 0 with index 9 at 2ns"}},
		{"concurrent ones may", []Reply{pull(0, lin, 1, 9), pull(1, lin, 2, 8)}, nil},
		{"a linearizable read follows leader reads", []Reply{pull(0, lead, 1, 9), pull(1, lin, 3, 8)},
			[]string{"index: shard 1: the linearizable read of client 1, called at 3ns, shows index 8, after the reply to a " +
				"pull of client 0 with index 9 at 2ns"}},
		{"a leader read has its own pushes", []Reply{push(0, 1, 9), pull(0, lead, 3, 8)},
			[]string{"index: shard 1: the leader read of client 0, called at 3ns, shows index 8, after the reply to a push of " +
				"client 0 with index 9 at 2ns"}},
		{"and not those of others", []Reply{push(1, 1, 9), pull(0, lead, 3, 8)}, nil},
		{"shards have their own indices", []Reply{{Shard: 2, Kind: history.Pull, Mode: lin, Call: 1, Return: 2, Index: 9},
			pull(0, lin, 3, 8)}, nil},
		{"a bounded read may lack what was told within its age", []Reply{push(0, 10, 9), bounded(20, 9, 8, 0)}, nil},
		{"or as many entries as it claims", []Reply{push(0, 10, 9), bounded(20, 5, 8, 1)}, nil},
		{"its rows may have more than its index if it allows any lag",
			[]Reply{push(0, 10, 9), {Client: 7, Shard: 1, Kind: history.Pull, Mode: ModeBounded, Call: 20, Return: 21, Age: 5,
				Index: 8}}, nil},
		{"and nothing else", []Reply{push(0, 10, 9), pull(3, lead, 12, 8), bounded(20, 8, 8, 0)},
			[]string{"index: shard 1: the bounded read of client 7, called at 20ns, shows index 8 and claims an age of 8ns " +
				"and a lag of 0, after the reply to a push of client 0 with index 9 at 11ns"}},
		{"an old bounded read is no excuse for the next",
			[]Reply{push(0, 10, 9), bounded(40, 39, 8, 0), bounded(30, 1, 8, 0)},
			[]string{"index: shard 1: the bounded read of client 7, called at 30ns, shows index 8 and claims an age of 1ns " +
				"and a lag of 0, after the reply to a push of client 0 with index 9 at 11ns"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := texts(Mono(tc.replies)); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
