package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
)

// merge reads the streams of a chain side by side, slot by slot. In each slot the
// newest link comes first: a key that it has is left out of the older ones, and
// below a link that has the whole slot nothing counts.
type merge struct {
	ctx  context.Context
	rows func(*Block) error

	links [][]*shardFileStream
	seen  map[uint64]uint8 // keys of the present slot, and the link that had it

	cur   SlotSum // counted of the present slot
	size  int     // of its records; 0 before the first block
	first bool    // no block of it went out yet
	found bool    // a link has it

	candidates []byte // of the newest link that has it
}

// open opens the streams for shard file i and returns what its slots hold.
func (m *merge) open(c Chain, i int, read func(int)) (want []SlotSum, err error) {
	plan := c.plan(i)
	sums := make([]map[int][]SlotSum, len(c)) // by link and shard file
	for j, l := range plan {
		sums[j] = make(map[int][]SlotSum)
		for _, k := range l.sums {
			if sums[j][k], err = ReadSums(m.ctx, c[j].Files, &c[j].Manifest.Shards[k], read); err != nil {
				return nil, c.in(j, err)
			}
		}
	}
	for j, l := range plan {
		parent := make(sumsOf)
		if j+1 < len(c) {
			for _, s := range sums[j+1] {
				parent.add(s)
			}
		}
		m.links = append(m.links, nil)
		for _, k := range l.streams {
			s, err := openShardFile(m.ctx, c, j, k, sums[j][k], parent, read)
			if err != nil {
				return nil, c.in(j, err)
			}
			m.links[j] = append(m.links[j], s)
			if err := s.next(m.ctx); err != nil {
				return nil, err
			}
		}
	}
	return sums[0][i], nil
}

// in says in which link of a chain something is wrong.
func (c Chain) in(j int, err error) error {
	if err == nil || len(c) == 1 {
		return err
	}
	return fmt.Errorf("checkpoint %s: %w", c[j].Name, err)
}

// slot hands out the rows of one slot and compares them with what the shard counted.
func (m *merge) slot(want SlotSum) error {
	clear(m.seen)
	m.cur, m.size, m.first = SlotSum{Table: want.Table, Slot: want.Slot, Counter: want.Counter}, 0, true
	m.found, m.candidates = false, m.candidates[:0]
	for j := range m.links {
		done, err := m.slotOf(j)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	for w := m.candidates; len(w) > 0; w = w[candidateSize:] {
		m.cur.Digest = m.cur.Digest.Add(CandidateDigest(w[:candidateSize]))
	}
	switch {
	case m.cur != want || m.size == 0:
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"table %#x slot %d has %d rows with digest %x, the shard counted %d with %x",
			uint64(want.Table), want.Slot, m.cur.Rows, m.cur.Digest, want.Rows, want.Digest)
	case m.first: // no row is left; the counter is
		if err := m.rows(&Block{Slot: m.slotNow(), First: true}); err != nil {
			return err
		}
	}
	if len(m.candidates) > 0 { // behind all rows of the slot
		return m.rows(&Block{Slot: m.slotNow(), Candidates: m.candidates})
	}
	return nil
}

// slotOf hands out what link j has of the present slot and no link before; done
// tells that older ones do not count.
func (m *merge) slotOf(j int) (done bool, err error) {
	for _, s := range m.links[j] {
		if !s.check.p.holds(m.cur.Slot) {
			continue
		}
		there, err := s.seek(m.ctx, m.cur.Table, m.cur.Slot)
		if err != nil || !there {
			return false, err
		}
		done = s.b.Whole || !s.check.delta
		newest := !m.found
		m.found = true
		for {
			if s.b.Candidates != nil && newest {
				m.candidates = append(m.candidates, s.b.Candidates...)
			}
			if err := m.block(j, &s.b, s.check.hashes); err != nil {
				return false, err
			}
			if err := s.next(m.ctx); err != nil {
				return false, err
			}
			if s.done || s.b.First {
				return done, nil
			}
		}
	}
	return false, nil
}

// block hands out the rows of b whose keys are new; hashes are those of its rows.
func (m *merge) block(j int, b *Block, hashes []Digest) error {
	if m.size != 0 && m.size != b.RecordBytes {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %#x slot %d: records of %d bytes in a delta, of %d in its parent",
			uint64(b.Table), b.Slot.Slot, m.size, b.RecordBytes)
	}
	m.size = b.RecordBytes
	out := b.Records[:0]
	for i, rec := 0, b.Records; len(rec) > 0; i, rec = i+1, rec[m.size:] {
		if len(m.links) > 1 {
			key := le.Uint64(rec[recordKey:])
			if by, ok := m.seen[key]; ok && int(by) == j {
				return rowraft.Errorf(rowraft.CodeCorrupt, "table %#x slot %d: key %d occurs twice in one stream", uint64(b.Table),
					b.Slot.Slot, key)
			} else if ok {
				continue
			}
			if j+1 < len(m.links) {
				m.seen[key] = uint8(j)
			}
		}
		m.cur.Digest = m.cur.Digest.Add(hashes[i])
		if len(out) < len(b.Records)-len(rec) {
			out = append(out, rec[:m.size]...) // over one that was left out
		} else {
			out = out[:len(out)+m.size]
		}
	}
	n := len(out) / m.size
	m.cur.Rows += uint32(n)
	if n == 0 {
		return nil
	}
	first := m.first
	m.first = false
	return m.rows(&Block{Slot: m.slotNow(), First: first, Rows: n, Records: out})
}

func (m *merge) slotNow() Slot {
	return Slot{Table: m.cur.Table, Slot: m.cur.Slot, Counter: m.cur.Counter, RecordBytes: m.size}
}

// end reads what is left of all streams.
func (m *merge) end() error {
	for _, l := range m.links {
		for _, s := range l {
			for !s.done {
				if err := s.next(m.ctx); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (m *merge) close() error {
	var errs []error
	for _, l := range m.links {
		for _, s := range l {
			errs = append(errs, s.file.Close())
		}
	}
	return errors.Join(errs...)
}

// shardFileStream is the stream of one shard file, checked as it is read.
type shardFileStream struct {
	chain Chain
	link  int
	name  string
	file  *summed
	rd    *Reader
	check *shardFileCheck
	b     Block // the next one
	done  bool  // there is none
}

func openShardFile(ctx context.Context, c Chain, j, k int, sums []SlotSum, parent sumsOf,
	read func(int)) (*shardFileStream, error) {
	m := c[j].Manifest
	p := &m.Shards[k]
	check, err := newShardFileCheck(m, p, sums, parent)
	if err != nil {
		return nil, err
	}
	s := &shardFileStream{chain: c, link: j, name: p.Stream.Name, check: check}
	if s.file, err = openSummed(ctx, c[j].Files, p.Stream, read); err != nil {
		return nil, err
	}
	if s.rd, err = NewReader(s.file); err == nil {
		err = s.check.header(s.rd)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("file %s: %w", s.name, err), s.file.Close())
	}
	return s, nil
}

// next reads one block, or finds the end right.
func (s *shardFileStream) next(ctx context.Context) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b, err = s.rd.Next()
	if errors.Is(err, io.EOF) {
		s.done = true
		err = s.check.end(s.rd.Trailer())
	} else if err == nil {
		err = s.check.block(&s.b)
	}
	if err != nil {
		return s.chain.in(s.link, fmt.Errorf("file %s: %w", s.name, err))
	}
	return nil
}

// seek goes on to a slot and reports whether the stream has it.
func (s *shardFileStream) seek(ctx context.Context, table rowraft.TableID, slot rowraft.Slot) (bool, error) {
	for !s.done && (s.b.Table < table || s.b.Table == table && s.b.Slot.Slot < slot) {
		if err := s.next(ctx); err != nil {
			return false, err
		}
	}
	return !s.done && s.b.Table == table && s.b.Slot.Slot == slot, nil
}
