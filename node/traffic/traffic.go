package traffic

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/wire"
)

// Op is an operation of the table service.
type Op uint8

// The operations. StepPush is a push to a step of a synchronous job, which also waits for the other workers of the job.
const (
	Pull Op = iota
	Push
	Assign
	Delete
	StepPush
	Scan
	OpenSession
	CopyRows // a pull of another server
	ops
)

var opNames = [ops]string{"pull", "push", "assign", "delete", "step_push", "scan", "open_session", "copy_rows"}

// OfWrite returns the operation of a write.
func OfWrite(op wire.Op) Op {
	switch op {
	case wire.OpAssign:
		return Assign
	case wire.OpDelete:
		return Delete
	}
	return Push
}

const (
	// maxTables is the number of tables with counters of their own. Calls for further tables count as table "other".
	maxTables = 128
	other     = "other"
	// maxIDs is the number of ids of tables that are remembered before those of dropped tables are forgotten. A cluster
	// has at most 1,024 tables.
	maxIDs = 2048
	// unknown is the table of calls that name a table which the cluster does not have.
	unknown = "unknown"
)

// codes is the number of results: success, then each rowraft.Code.
const codes = 1 + rowraft.Codes

// CodeOK is the label of calls without an error.
const CodeOK = "OK"

func codeName(i int) string {
	if i == 0 {
		return CodeOK
	}
	return rowraft.Code(i - 1).String()
}

// refusals are the limits that Counts counts: those of rowraft.OverloadedError.Limit that package admit does not count
// itself. The last one stands for limits without a name.
var refusals = [...]string{"queue", "log", "disk", "sessions", "window", "checkpoint", "steps", "waiters", "unnamed"}

// counters are the numbers of one operation, result and table.
type counters struct{ requests, keys, unchanged, received, sent atomic.Uint64 }

// table has the counters of one name.
type table struct {
	name string
	by   [ops][codes]counters
}

// Counts are the counters of a server. Safe for concurrent use.
type Counts struct {
	name func(rowraft.TableID) (string, bool) // name of a table; false: unknown

	// tables has the counters by id. It is replaced, never changed: a call reads it without a lock.
	tables atomic.Pointer[map[rowraft.TableID]*table]

	none, unknown, other table // calls without a table, of a table that does not exist, and of tables beyond maxTables

	took    [ops]histogram.Durations
	refused [len(refusals)]atomic.Uint64

	mu     sync.Mutex
	byName map[string]*table // at most maxTables; guarded by mu
}

// New returns counters. name returns the name of a table of the cluster; Counts calls it when a call names an id that
// it does not know.
func New(name func(rowraft.TableID) (string, bool)) *Counts {
	c := &Counts{name: name, byName: make(map[string]*table)}
	c.unknown.name, c.other.name = unknown, other
	c.tables.Store(&map[rowraft.TableID]*table{})
	return c
}

// fixedParts is the number of tables that a Call holds without an allocation.
const fixedParts = 6

// Call is one request on its way through the service. The zero value counts nothing.
type Call struct {
	counts *Counts
	op     Op
	began  time.Time
	n      int // parts in use
	parts  [fixedParts]part
	more   []part // parts beyond fixedParts
}

// part is what a call asks of one table.
type part struct {
	table                *table
	keys, received, sent uint64
	unchanged            uint64 // keys whose rows were not sent, because the client has them
}

// Begin starts the count of a request. payload has the segments of the request. End does not read it: the service may
// release it before.
func (c *Counts) Begin(op Op, payload []byte) (call Call) {
	if c == nil {
		return call
	}
	call.counts, call.op, call.began = c, op, time.Now()
	for len(payload) > 0 {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil {
			break // the service refuses the request
		}
		call.add(part{table: c.tableOf(seg.Table), keys: uint64(seg.N), received: uint64(len(payload) - len(rest))})
		payload = rest
	}
	return call
}

// BeginTable starts the count of a request for one table without a payload; id 0 is no table.
func (c *Counts) BeginTable(op Op, id rowraft.TableID) (call Call) {
	if c == nil {
		return call
	}
	call.counts, call.op, call.began = c, op, time.Now()
	if id != 0 {
		call.add(part{table: c.tableOf(id)})
	}
	return call
}

// Replied counts the reply to a pull, which has a segment for each of the request.
func (call *Call) Replied(payload []byte) {
	for i := 0; i < call.n && len(payload) > 0; i++ {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return
		}
		p := call.part(i)
		p.sent, p.unchanged = uint64(len(payload)-len(rest)), uint64(seg.Unchanged)
		payload = rest
	}
}

func (call *Call) part(i int) *part {
	if i < fixedParts {
		return &call.parts[i]
	}
	return &call.more[i-fixedParts]
}

func (call *Call) add(p part) {
	if call.n < fixedParts {
		call.parts[call.n] = p
	} else {
		call.more = append(call.more, p)
	}
	call.n++
}

// Sent counts n bytes of an answer to a call of one table.
func (call *Call) Sent(n int) {
	if call.n > 0 {
		call.parts[0].sent += uint64(n)
	}
}

// End counts the request with its result. The histogram of the operation gets requests that were served and those that
// ran out of time, but no refused ones: a refusal takes no time, and many of them would hide slow requests.
func (call *Call) End(err error) {
	c := call.counts
	if c == nil {
		return
	}
	code := 0
	if err != nil {
		code = 1 + int(rowraft.CodeOf(err))
		c.countRefusal(err)
	}
	if code == 0 || code == 1+int(rowraft.CodeDeadline) {
		c.took[call.op].Observe(time.Since(call.began))
	}
	if call.n == 0 {
		c.none.by[call.op][code].requests.Add(1)
	}
	for i := range call.n {
		call.part(i).count(call.op, code)
	}
}

func (p *part) count(op Op, code int) {
	n := &p.table.by[op][code]
	n.requests.Add(1)
	if p.keys > 0 {
		n.keys.Add(p.keys)
	}
	if p.unchanged > 0 {
		n.unchanged.Add(p.unchanged)
	}
	if p.received > 0 {
		n.received.Add(p.received)
	}
	if p.sent > 0 && (code == 0 || op == Scan) {
		n.sent.Add(p.sent)
	}
}

func (c *Counts) countRefusal(err error) {
	var full *rowraft.OverloadedError
	if !errors.As(err, &full) {
		return
	}
	limit := full.Limit
	if limit == "" {
		limit = refusals[len(refusals)-1]
	}
	if i := slices.Index(refusals[:], limit); i >= 0 {
		c.refused[i].Add(1)
	}
}

// tableOf returns the counters of a table.
func (c *Counts) tableOf(id rowraft.TableID) *table {
	if t, ok := (*c.tables.Load())[id]; ok {
		return t
	}
	return c.addTable(id)
}

// addTable makes the counters of a table that no call has named before.
func (c *Counts) addTable(id rowraft.TableID) *table {
	name, ok := c.name(id)
	if !ok {
		return &c.unknown // not kept: the table may be created later
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	tables := maps.Clone(*c.tables.Load())
	t := c.byName[name] // a table that was dropped and created again keeps its counters
	if t == nil && len(c.byName) >= maxTables || len(tables) >= maxIDs {
		c.forgetLocked(tables, t)
	}
	switch {
	case t != nil:
	case len(c.byName) < maxTables:
		t = &table{name: name}
		c.byName[name] = t
	default:
		t = &c.other
	}
	tables[id] = t
	c.tables.Store(&tables)
	return t
}

// forgetLocked removes the tables that the cluster does not have any more, and their counters, except keep.
// REQUIRES: c.mu is held.
func (c *Counts) forgetLocked(tables map[rowraft.TableID]*table, keep *table) {
	live := map[*table]bool{keep: true}
	for id, t := range tables {
		if _, ok := c.name(id); ok {
			live[t] = true
		} else {
			delete(tables, id)
		}
	}
	maps.DeleteFunc(c.byName, func(_ string, t *table) bool { return !live[t] })
}
