package shard

import (
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/wire"
)

// MaxPullBytes is the largest reply of one pull.
const MaxPullBytes = 64 << 20

// Reads is what pulls and scans read. They do not take Machine.mu, because Apply holds it while rows change.
type Reads struct {
	shard rowraft.ShardID
	owned *slotSet // immutable
	at    *position

	// view is replaced under Machine.mu by a goroutine that changes the set of tables or the health.
	view atomic.Pointer[view]

	// readers is held for reading while a goroutine reads rows of a view or of a snapshot, one chunk
	// at a time. It is held for writing to wait for such goroutines before rows are
	// freed. A change of rows does not take it.
	readers sync.RWMutex

	// tend is the function tend for the Machine of these reads.
	tend func(t *table, err error) error
}

// view is the tables that readers may use. It is immutable; the rows in it change.
type view struct {
	of   *tableSet // only for comparison; Machine.mu guards its fields
	list []*table
	err  error // the reason why nothing can be read, or nil
}

func (v *view) table(id rowraft.TableID) *table { return findTable(v.list, id) }

// Pull reads the weights of keys.
//
// payload is segments with exactly FlagNoValues; keys may repeat
// and come in any order. The reply has one segment for each of them, in the same order,
// with FlagNoKeys and, if presence is set, FlagPresence: one bit for each key, set if the key has
// a row. Values have the dtype that the segment requests. A key never
// pushed reads as the initializer and is not created.
//
// A segment with FlagVersions gets the versions of its rows. With FlagKnown it has versions that the client knows, of
// epoch known; a row that has that version is left out of the reply. If the tables have another epoch, none is.
//
// Pull calls alloc(size) once and writes the reply into its result: size bytes, which
// need not be zero. If alloc returns nil there is no memory, and Pull ends. The reply may be shorter. Each row is
// whole, of the returned epoch, and reflects the returned index or a later one. Pull keeps neither buffer. Safe for
// concurrent use.
//
// Errors: CodeInvalidArgument, CodeTableNotFound, CodeWrongShard; CodeStarting
// if a snapshot was restored during the pull; CodeClosing; CodeOverloaded if alloc returned nil.
// On an error the caller frees the buffer that alloc returned.
func (d *Reads) Pull(
	payload []byte, presence bool, known rowraft.TableEpoch, alloc func(size int) []byte,
) (reply []byte, at Position, err error) {
	size, err := d.ReplySize(payload, presence)
	if err != nil {
		return nil, at, err
	}
	d.readers.RLock() // a restore replaces state and index together, and so the pull reads them together
	of := d.view.Load().of
	at = Position{Applied: d.at.AppliedIndex(), Epoch: d.at.Epoch()}
	d.readers.RUnlock()
	if reply = alloc(size); reply == nil {
		return nil, at, rowraft.Errorf(rowraft.CodeOverloaded,
			"shard %d: no memory for a reply of %d bytes: try again later", d.shard, size)
	}
	reply = reply[:size]
	out := reply
	for len(payload) > 0 {
		ask, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return nil, at, err
		}
		payload = rest
		if known != at.Epoch {
			body.Known = nil
		}
		give := replySegment(ask, presence)
		leftOut, err := d.pullSegment(of, give, body, give.Put(out[:give.Size()]))
		if err != nil {
			return nil, at, err
		}
		out = out[give.LeaveOut(out, leftOut):]
	}
	return reply[:len(reply)-len(out)], at, nil
}

// InMemory reports whether no table has rows on disk.
func (d *Reads) InMemory() bool {
	for _, t := range d.view.Load().list {
		if t.rows.Tier() != nil {
			return false
		}
	}
	return true
}

// Position is the state that a pull has read.
type Position struct {
	Applied rowraft.Index // the rows reflect this index or a later one
	Epoch   rowraft.TableEpoch
}

// replySegment returns the segment that replies to ask.
func replySegment(ask wire.Segment, presence bool) wire.Segment {
	ask.Flags = wire.FlagNoKeys | ask.Flags&wire.FlagVersions
	if presence {
		ask.Flags |= wire.FlagPresence
	}
	return ask
}

// ReplySize checks a pull and returns the size of its reply in bytes, if no row is left out. It does not look at the
// keys: the table checks each one when it looks it up. Errors as in Pull, without CodeWrongShard.
func (d *Reads) ReplySize(payload []byte, presence bool) (int, error) {
	size := 0
	for keys := 0; len(payload) > 0; {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return 0, err
		}
		payload = rest
		t, err := d.find(seg.Table)
		if err != nil {
			return 0, err
		}
		if seg.Flags&^(wire.FlagVersions|wire.FlagKnown) != wire.FlagNoValues {
			return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: segment flags %#x: a pull has no values, "+
				"flags %#x, and may have versions, flags %#x", t.schema.Name, seg.Flags, wire.FlagNoValues,
				wire.FlagVersions|wire.FlagKnown)
		}
		if err := t.checkDim(seg); err != nil {
			return 0, err
		}
		if keys += seg.N; keys > rowraft.MaxKeysPerPart {
			return 0, tooManyKeys(keys)
		}
		if size += replySegment(seg, presence).Size(); size > MaxPullBytes {
			return 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"the reply of one pull is larger than %d bytes, the limit: request fewer keys", MaxPullBytes)
		}
	}
	return size, nil
}

// pullSegment fills out with the rows of ask's keys, and returns how many it left out. It holds readers for chunkRows
// at a time, so that a restore can take it in between.
func (d *Reads) pullSegment(of *tableSet, seg wire.Segment, ask, out wire.Body) (leftOut int, err error) {
	var scratch [chunkRows]rowraft.Key
	rowBytes := seg.RowBytes()
	for from := 0; from < seg.N; from += chunkRows {
		to := min(from+chunkRows, seg.N)
		keys := wire.Keys(scratch[:], ask.Keys[8*from:8*to])
		part := wire.Body{Values: out.Values[(from-leftOut)*rowBytes:][:(to-from)*rowBytes]}
		if len(out.Presence) > 0 {
			part.Presence = out.Presence[from/8 : (to+7)/8]
		}
		if len(out.Unchanged) > 0 {
			part.Unchanged = out.Unchanged[from/8 : (to+7)/8]
		}
		if len(ask.Known) > 0 {
			part.Known = ask.Known[wire.VersionBytes*from : wire.VersionBytes*to]
		}
		n, err := d.pullChunk(of, seg, keys, part)
		if err != nil {
			return 0, err
		}
		leftOut += n
	}
	return leftOut, nil
}

// pullChunk fills out, which also has the known versions, and returns how many rows it left out.
func (d *Reads) pullChunk(of *tableSet, seg wire.Segment, keys []rowraft.Key, out wire.Body) (leftOut int, err error) {
	t, leftOut, err := d.pullRows(of, seg, keys, out)
	if t != nil && t.rows.Tier() != nil {
		return leftOut, d.tend(t, err)
	}
	return leftOut, err
}

func (d *Reads) pullRows(
	of *tableSet, seg wire.Segment, keys []rowraft.Key, out wire.Body,
) (t *table, leftOut int, err error) {
	d.readers.RLock()
	defer d.readers.RUnlock()
	v := d.view.Load()
	if v.err != nil {
		return nil, 0, v.err
	}
	if v.of != of {
		return nil, 0, rowraft.Errorf(rowraft.CodeStarting, "shard %d restored a snapshot during the read: try again",
			d.shard)
	}
	if t = v.table(seg.Table); t == nil {
		return nil, 0, d.notFound(seg.Table)
	}
	if seg.Flags&wire.FlagVersions != 0 {
		leftOut, err = rowstore.PullVersions(t.rows, keys, out.Values, seg.DType, out.Presence, out.Known, out.Unchanged)
		return t, leftOut, err
	}
	return t, 0, t.rows.Pull(keys, out.Values, seg.DType, out.Presence)
}

// Slots returns the slots of this shard, ascending.
func (d *Reads) Slots() (slots []rowraft.Slot) {
	for s := d.owned.first; s < d.owned.past; s++ {
		if d.owned.has(s) {
			slots = append(slots, s)
		}
	}
	return slots
}

// SlotCount returns the number of slots of the cluster.
func (d *Reads) SlotCount() rowraft.SlotCount { return d.owned.count }

// find returns the table with id. Its rows may change only under Machine.mu.
func (d *Reads) find(id rowraft.TableID) (*table, error) {
	if t := d.view.Load().table(id); t != nil {
		return t, nil
	}
	return nil, d.notFound(id)
}

func (d *Reads) notFound(id rowraft.TableID) error {
	return rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", d.shard, uint64(id))
}

// checkSlots refuses a key whose slot this shard does not hold.
func (d *Reads) checkSlots(t *table, body wire.Body) error {
	kind, seed := t.schema.Kind, t.seed
	for i := range len(body.Keys) / 8 {
		key := body.Key(i)
		if hash := clustermap.Mix64(uint64(kind.PlacementKey(key)) ^ seed); !d.owned.hasHash(hash) {
			return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: key %d is in slot %d, which shard %d does not hold",
				t.schema.Name, key, clustermap.SlotOfHash(hash, d.owned.count), d.shard)
		}
	}
	return nil
}

// Sums reports whether pushes of a table may be summed (wire.OpSum), and whether the rows of a sum need counts.
func (d *Reads) Sums(id rowraft.TableID) (sums, counts bool) {
	t := d.view.Load().table(id)
	return t != nil && t.schema.SumsPushes(), t != nil && t.schema.Tracked()
}

// checkSegment checks the fixed part of a segment that changes rows and returns
// its table.
func (d *Reads) checkSegment(op wire.Op, seg wire.Segment) (*table, error) {
	if seg.Flags&wire.FlagVersions != 0 { // an invalid header, like an unknown flag
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: segment flags %#x: only pulls have versions",
			uint64(seg.Table), seg.Flags)
	}
	t, err := d.find(seg.Table)
	if err != nil {
		return nil, err
	}
	allowed, wanted := wire.FlagLR, uint8(0)
	switch op {
	case wire.OpAssign:
		allowed = 0
	case wire.OpDelete:
		allowed, wanted = wire.FlagNoValues, wire.FlagNoValues
	case wire.OpSum:
		if !t.schema.SumsPushes() {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s does not sum pushes", t.schema.Name)
		}
		if t.schema.Tracked() {
			allowed, wanted = wire.FlagLR|wire.FlagCounts, wire.FlagCounts
		}
	}
	if seg.Flags&^allowed != 0 || seg.Flags&wanted != wanted {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: segment flags %#x are not allowed in this request",
			t.schema.Name, seg.Flags)
	}
	return t, t.checkDim(seg)
}

func (t *table) checkDim(seg wire.Segment) error {
	if seg.Dim != t.schema.Dim {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has dim %d, the request has %d",
			t.schema.Name, t.schema.Dim, seg.Dim)
	}
	return nil
}

func tooManyKeys(n int) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d keys: want at most %d in one request: split it",
		n, rowraft.MaxKeysPerPart)
}
