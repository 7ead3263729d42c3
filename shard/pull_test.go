package shard

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

const askVersions = wire.FlagNoValues | wire.FlagVersions

// pullVersions pulls keys in two segments, and returns for each row its version and first weight, 0 and 0 if it was
// left out, and the number of rows that were not. known is nil or has a version for each key.
func (r *replica) pullVersions(s rowraft.Schema, epoch rowraft.TableEpoch, keys []rowraft.Key,
	known []uint32) (versions []uint32, weights []float32, came int) {
	r.tb.Helper()
	ask, half := rows{schema: s, flags: askVersions, keys: keys, known: known}, len(keys)/3
	one, other := ask, ask
	one.keys, other.keys = keys[:half], keys[half:]
	if known != nil {
		one.flags, other.flags = askVersions|wire.FlagKnown, askVersions|wire.FlagKnown
		one.known, other.known = known[:half], known[half:]
	}
	size := 0
	reply, at, err := r.Pull(payloadOf(one, other), false, epoch, func(n int) []byte { size = n; return make([]byte, n) })
	if err != nil || at != (Position{r.AppliedIndex(), r.Epoch()}) {
		r.tb.Fatalf("at %+v: %v", at, err)
	}
	if len(reply) > size {
		r.tb.Fatalf("a reply of %d bytes in a buffer of %d", len(reply), size)
	}
	for range 2 {
		seg, body, rest, err := wire.ParseSegment(reply)
		if err != nil || seg.Flags != wire.FlagNoKeys|wire.FlagVersions {
			r.tb.Fatalf("%+v: %v", seg, err)
		}
		for i := range seg.N {
			if body.Unchanged[i/8]>>(i%8)&1 != 0 {
				versions, weights = append(versions, 0), append(weights, 0)
				continue
			}
			var w [1]float32
			wire.GetFloats(w[:], rowraft.Float32, body.Values[wire.VersionBytes:])
			versions, weights = append(versions, le.Uint32(body.Values)), append(weights, w[0])
			body.Values = body.Values[seg.RowBytes():]
			came++
		}
		reply = rest
	}
	if len(reply) > 0 {
		r.tb.Fatalf("%d bytes left", len(reply))
	}
	return versions, weights, came
}

// A pull leaves the rows out that have the version which the client knows, over several chunks, and on every replica.
func TestPullLeavesOutKnownRows(t *testing.T) {
	a, b := newReplica(t, Config{}), newReplica(t, Config{})
	keys := make([]rowraft.Key, 5*chunkRows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	both := []*replica{a, b}
	for _, r := range both {
		r.create(markTable())
		r.mustOpen(1, 1)
		r.parts(push(1, 1, payloadOf(rows{schema: markTable(), keys: keys})))
	}
	versions, weights, came := a.pullVersions(markTable(), 0, keys, nil)
	if came != len(keys) {
		t.Fatalf("%d of %d rows came without known versions", came, len(keys))
	}
	changed := []rowraft.Key{0, chunkRows + 1, chunkRows + 2, 3 * chunkRows, 5*chunkRows - 1}
	a.parts(push(1, 2, payloadOf(rows{schema: markTable(), keys: changed})))
	for _, r := range both {
		got, w, came := r.pullVersions(markTable(), 1, keys, versions)
		if r == b { // it has not applied the second push
			if came != 0 {
				t.Errorf("%d of %d rows came that another replica sent before", came, len(keys))
			}
			continue
		}
		for i, key := range keys {
			if is := slices.Contains(changed, key); is != (got[i] != 0) || is && (got[i] == versions[i] || w[i] == weights[i]) {
				t.Errorf("row %d: version %d with weight %v, before %d with %v", key, got[i], w[i], versions[i], weights[i])
			}
		}
	}
	// The replica that is behind has rows that are older than those that the client has: they count as changed.
	newer, _, _ := a.pullVersions(markTable(), 0, keys, nil)
	if _, _, came := b.pullVersions(markTable(), 1, keys, newer); came != len(changed) {
		t.Errorf("%d rows came from a replica that is behind, want %d", came, len(changed))
	}
	for _, epoch := range []rowraft.TableEpoch{0, 2} {
		if _, _, came := a.pullVersions(markTable(), epoch, keys, newer); came != len(keys) {
			t.Errorf("%d of %d rows came to a client with the versions of epoch %d", came, len(keys), epoch)
		}
	}
}

// After a restore, versions count from those of the checkpoint: rows may have the numbers that other rows had before.
func TestVersionsAreOfAnEpoch(t *testing.T) {
	from := restoreSource(t)
	begin, chunks, end := restoreEntries(t, from, wire.RestoreID{1})
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	keys := []rowraft.Key{1, 2, 3, 4, 5, 6}
	r.parts(push(1, 1, payloadOf(rows{schema: markTable(), keys: keys[:5], values: make([]float32, 5*markTable().Dim)})))
	known, weights, _ := r.pullVersions(markTable(), 0, keys, nil)
	for _, entry := range slices.Concat([][]byte{begin}, chunks, [][]byte{end}) {
		r.apply(entry)
	}
	versions, now, came := r.pullVersions(markTable(), 1, keys, known)
	if r.Epoch() != 2 || came != len(keys) {
		t.Errorf("%d rows came after a restore to epoch %d, want all", came, r.Epoch())
	}
	same := false
	for i := range keys {
		same = same || versions[i] == known[i] && weights[i] != now[i]
	}
	if !same {
		t.Errorf("versions %d before the restore, %d after it: want one row with an equal version and another weight", known,
			versions)
	}
	if _, _, came := r.pullVersions(markTable(), 2, keys, versions); came != 0 {
		t.Errorf("%d rows came to a client that has them", came)
	}
}

// In a log entry, the flags of versions are flags that do not exist.
func TestAPushHasNoVersions(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	unknown := testTable(77, "x", 2, sgd)
	for i, s := range []rowraft.Schema{markTable(), unknown} {
		for j, flags := range []uint8{wire.FlagVersions, askVersions, askVersions | wire.FlagKnown} {
			p := push(1, rowraft.Seq(3*i+j+1), payloadOf(rows{schema: s, flags: flags, keys: []rowraft.Key{1}}))
			testutil.WantCode(t, r.parts(p)[0].Err, rowraft.CodeInvalidArgument, "flags")
		}
	}
}
