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
	hellos  chan *seat
	ctx     context.Context // ends with the generation or the Group
	end     context.CancelFunc
	drained chan struct{} // closed by run when nobody is left
	left    map[int]bool  // ranks that said farewell; run's
}

// seat is a member at the hub: run's, but for its reader, which has conn's other side.
type seat struct {
	rank   int
	round  uint64 // that it is about to do
	conn   net.Conn
	convey conveyor // for writing
}

// heard is a frame of a member, or why there are no more.
type heard struct {
	from *seat
	f    *frame
	err  error
}

func newHub(ctx context.Context, opts Options, m Members) *hub {
	h := &hub{opts: opts, members: m, hellos: make(chan *seat), drained: make(chan struct{}), left: map[int]bool{}}
	h.ctx, h.end = context.WithCancel(ctx)
	return h
}

// take seats a member; false if the hub has ended, or has no such member.
func (h *hub) take(conn net.Conn, f *frame) bool {
	if !slices.Contains(h.members.Ranks, int(f.who)) {
		return false
	}
	select {
	case h.hellos <- &seat{rank: int(f.who), round: f.round, conn: conn}:
		return true
	case <-h.ctx.Done():
		return false
	}
}

// run gathers the members and serves rounds, over and over.
func (h *hub) run() {
	seats := map[int]*seat{}
	defer func() {
		for _, s := range seats {
			s.conn.Close()
		}
	}()
	for {
		for len(seats) < len(h.live()) {
			select {
			case s := <-h.hellos:
				h.sit(seats, s)
			case <-h.ctx.Done():
				return
			}
		}
		if len(seats) == 0 { // all have said farewell
			close(h.drained)
			<-h.ctx.Done()
			return
		}
		h.serve(seats)
	}
}

// sit gives s its place, or that of an earlier connection of the same rank.
func (h *hub) sit(seats map[int]*seat, s *seat) {
	if old := seats[s.rank]; old != nil {
		old.conn.Close()
	}
	delete(h.left, s.rank) // it has come back
	seats[s.rank] = s
}

// live are the ranks that have not said farewell, ascending.
func (h *hub) live() (ranks []int) {
	for _, r := range h.members.Ranks {
		if !h.left[r] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// serve brings all to one round and does rounds until a connection fails, somebody
// comes back, the hub ends, or nobody is left. It then closes all connections, so that
// every member comes back.
func (h *hub) serve(seats map[int]*seat) {
	frames := make(chan heard)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	var back *seat
	defer func() {
		close(stop)
		for _, s := range seats {
			s.conn.Close()
		}
		readers.Wait()
		clear(seats)
		if back != nil {
			h.sit(seats, back)
		}
	}()
	var conns []net.Conn
	for _, s := range seats {
		conns = append(conns, s.conn)
		readers.Go(func() { h.hear(s, frames, stop) })
	}
	readers.Go(func() { // one who does not read must not outlive its generation
		select {
		case <-h.ctx.Done():
			for _, c := range conns {
				c.Close()
			}
		case <-stop:
		}
	})
	hear := func() (heard, bool) {
		for {
			select {
			case m := <-frames:
				if h.ctx.Err() != nil { // the next generation does this round
					return heard{}, false
				}
				if seats[m.from.rank] == m.from { // else it has said farewell
					return m, m.err == nil && m.f.generation == h.members.Generation
				}
			case back = <-h.hellos: // somebody lost its connection before we noticed
				return heard{}, false
			case <-h.ctx.Done():
				return heard{}, false
			}
		}
	}
	round, ok := h.align(seats, hear)
	for ok && len(seats) > 0 {
		ok = h.doRound(seats, round, hear)
		round++
	}
}

// hear hands the frames of s to run.
func (h *hub) hear(s *seat, frames chan<- heard, stop <-chan struct{}) {
	var c conveyor
	for {
		f, err := c.read(s.conn, h.opts.Limit, nil)
		select {
		case frames <- heard{s, f, err}:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// align begins the round of the members that are furthest; the others take over what
// the lowest rank of these has.
func (h *hub) align(seats map[int]*seat, hear func() (heard, bool)) (round uint64, ok bool) {
	var source *seat
	for _, r := range h.live() {
		if s := seats[r]; source == nil || s.round > source.round {
			source = s
		}
	}
	var saved []float32
	if slices.ContainsFunc(h.live(), func(r int) bool { return seats[r].round < source.round }) {
		if !h.send(source, &frame{kind: wanted, round: source.round}) {
			return 0, false
		}
		m, ok := hear()
		if !ok || m.from != source || m.f.kind != state {
			return 0, false
		}
		saved = m.f.values
	}
	for _, r := range h.live() {
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

// doRound collects parts and farewells, and sends everybody the mean.
func (h *hub) doRound(seats map[int]*seat, round uint64, hear func() (heard, bool)) bool {
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
			h.send(m.from, &frame{kind: farewell, round: round}) // it asks again otherwise
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
	mean, same := meanOf(h.live(), parts)
	f := &frame{kind: result, round: round, who: uint32(len(parts)), values: mean}
	if !same {
		f = &frame{kind: refused, who: uint32(rowraft.CodeInvalidArgument)}
	}
	var all sync.WaitGroup
	sent := make([]bool, len(h.live()))
	for i, r := range h.live() {
		all.Go(func() { sent[i] = h.send(seats[r], f) })
	}
	all.Wait()
	return same && !slices.Contains(sent, false)
}

func (h *hub) send(s *seat, f *frame) bool {
	own := *f
	own.generation = h.members.Generation
	return s.convey.write(s.conn, &own) == nil
}

// meanOf sums parts in rank order, into the first one, and divides by their number;
// false if they are not of one length.
func meanOf(ranks []int, parts map[int][]float32) ([]float32, bool) {
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

// jobFloats are the bytes of a job's id as a frame carries them.
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
