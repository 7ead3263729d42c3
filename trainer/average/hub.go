package average

import (
	"context"
	"math"
	"net"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
)

// hub serves the members of one generation.
type hub struct {
	opts    Options
	members Members
	hellos  chan *memberConn
	ctx     context.Context // ends with the generation or the Group
	end     context.CancelFunc
	drained chan struct{} // closed by run when no member is left
	left    map[int]bool  // ranks that have sent a farewell; owned by run
}

// memberConn is a member's connection at the hub. run owns it, but for reads from conn, which recv makes.
type memberConn struct {
	rank   int
	round  uint64 // the member's next round
	conn   net.Conn
	convey frameCodec // for writing
}

// received is a frame of a member, or the error that ended its frames.
type received struct {
	from *memberConn
	f    *frame
	err  error
}

func newHub(ctx context.Context, opts Options, m Members) *hub {
	h := &hub{opts: opts, members: m, hellos: make(chan *memberConn), drained: make(chan struct{}),
		left: map[int]bool{}}
	h.ctx, h.end = context.WithCancel(ctx)
	return h
}

// accept adds a member; it returns false if the hub has ended, or has no such member.
func (h *hub) accept(conn net.Conn, f *frame) bool {
	if !slices.Contains(h.members.Ranks, int(f.who)) {
		return false
	}
	select {
	case h.hellos <- &memberConn{rank: int(f.who), round: f.round, conn: conn}:
		return true
	case <-h.ctx.Done():
		return false
	}
}

// run waits for the members and serves rounds, over and over.
func (h *hub) run() {
	seats := map[int]*memberConn{}
	defer func() {
		for _, s := range seats {
			s.conn.Close()
		}
	}()
	for {
		for len(seats) < len(h.liveRanks()) {
			select {
			case s := <-h.hellos:
				h.add(seats, s)
			case <-h.ctx.Done():
				return
			}
		}
		if len(seats) == 0 { // all members have sent a farewell
			close(h.drained)
			<-h.ctx.Done()
			return
		}
		h.serve(seats)
	}
}

// add stores s in place of an earlier connection of the same rank.
func (h *hub) add(seats map[int]*memberConn, s *memberConn) {
	if old := seats[s.rank]; old != nil {
		old.conn.Close()
	}
	delete(h.left, s.rank) // the member has returned
	seats[s.rank] = s
}

// liveRanks returns the ranks that have not sent a farewell, ascending.
func (h *hub) liveRanks() (ranks []int) {
	for _, r := range h.members.Ranks {
		if !h.left[r] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// serve brings all members to one round and does rounds until a connection fails, a member reconnects, the hub
// ends, or no member is left. It then closes all connections, so that every member reconnects.
func (h *hub) serve(seats map[int]*memberConn) {
	frames := make(chan received)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	var back *memberConn
	defer func() {
		close(stop)
		for _, s := range seats {
			s.conn.Close()
		}
		readers.Wait()
		clear(seats)
		if back != nil {
			h.add(seats, back)
		}
	}()
	var conns []net.Conn
	for _, s := range seats {
		conns = append(conns, s.conn)
		readers.Go(func() { h.recv(s, frames, stop) })
	}
	readers.Go(func() { // a member that does not read must not outlive its generation
		select {
		case <-h.ctx.Done():
			for _, c := range conns {
				c.Close()
			}
		case <-stop:
		}
	})
	hear := func() (received, bool) {
		for {
			select {
			case m := <-frames:
				if h.ctx.Err() != nil { // the next generation does this round
					return received{}, false
				}
				if seats[m.from.rank] == m.from { // otherwise it has sent a farewell
					return m, m.err == nil && m.f.generation == h.members.Generation
				}
			case back = <-h.hellos: // a member lost its connection before the hub noticed
				return received{}, false
			case <-h.ctx.Done():
				return received{}, false
			}
		}
	}
	round, ok := h.align(seats, hear)
	for ok && len(seats) > 0 {
		ok = h.doRound(seats, round, hear)
		round++
	}
}

// recv passes the frames of s to run.
func (h *hub) recv(s *memberConn, frames chan<- received, stop <-chan struct{}) {
	var c frameCodec
	for {
		f, err := c.read(s.conn, h.opts.Limit, nil)
		select {
		case frames <- received{s, f, err}:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// align begins the round of the members that are furthest; the others load the numbers of the lowest rank among
// these.
func (h *hub) align(seats map[int]*memberConn, hear func() (received, bool)) (round uint64, ok bool) {
	var source *memberConn
	for _, r := range h.liveRanks() {
		if s := seats[r]; source == nil || s.round > source.round {
			source = s
		}
	}
	var saved []float32
	if slices.ContainsFunc(h.liveRanks(), func(r int) bool { return seats[r].round < source.round }) {
		if !h.send(source, &frame{kind: wanted, round: source.round}) {
			return 0, false
		}
		m, ok := hear()
		if !ok || m.from != source || m.f.kind != state {
			return 0, false
		}
		saved = m.f.values
	}
	for _, r := range h.liveRanks() {
		f := &frame{kind: begin, round: source.round}
		if seats[r].round < source.round {
			f.kind, f.values = state, saved
		}
		if !h.send(seats[r], f) {
			return 0, false
		}
	}
	return source.round, true
}

// doRound collects shares and farewells, and sends the mean to all members.
func (h *hub) doRound(seats map[int]*memberConn, round uint64, hear func() (received, bool)) bool {
	parts := map[int][]float32{}
	for len(parts) < len(seats) {
		m, ok := hear()
		if !ok {
			return false
		}
		rank := m.from.rank
		switch {
		case m.f.kind == farewell && parts[rank] == nil:
			h.left[rank] = true
			h.send(m.from, &frame{kind: farewell, round: round}) // without it the member asks again
			m.from.conn.Close()
			delete(seats, rank)
		case m.f.kind == part && m.f.round == round && parts[rank] == nil:
			parts[rank] = m.f.values
		default:
			return false
		}
	}
	if len(seats) == 0 {
		return true
	}
	mean, same := meanOf(h.liveRanks(), parts)
	f := &frame{kind: result, round: round, who: uint32(len(parts)), values: mean}
	if !same {
		f = &frame{kind: refused, who: uint32(rowraft.CodeInvalidArgument)}
	}
	var all sync.WaitGroup
	sent := make([]bool, len(h.liveRanks()))
	for i, r := range h.liveRanks() {
		all.Go(func() { sent[i] = h.send(seats[r], f) })
	}
	all.Wait()
	return same && !slices.Contains(sent, false)
}

func (h *hub) send(s *memberConn, f *frame) bool {
	own := *f
	own.generation = h.members.Generation
	return s.convey.write(s.conn, &own) == nil
}

// meanOf sums shares in rank order, into the first one, and divides by their number; false if their lengths differ.
func meanOf(ranks []int, parts map[int][]float32) ([]float32, bool) {
	// The order of the ranks fixes the order of the additions, so every run of the same data gives the same bits.
	sum := parts[ranks[0]]
	for _, r := range ranks[1:] {
		p := parts[r]
		if len(p) != len(sum) {
			return nil, false
		}
		for i, v := range p {
			sum[i] += v
		}
	}
	n := float32(len(ranks))
	for i := range sum {
		sum[i] /= n
	}
	return sum, true
}

// jobFloats returns the bytes of a job's id as a frame carries them.
func jobFloats(job [16]byte) []float32 {
	v := make([]float32, 4)
	for i := range v {
		v[i] = math.Float32frombits(le.Uint32(job[4*i:]))
	}
	return v
}

func jobValues(job [16]byte) []uint32 { return bitsOf(jobFloats(job)) }

func bitsOf(values []float32) []uint32 {
	bits := make([]uint32, len(values))
	for i, v := range values {
		bits[i] = math.Float32bits(v)
	}
	return bits
}
