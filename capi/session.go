//go:build cgo

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/tables"
)

// session is a client with what C holds of it, or tables in this process in its place.
type session struct {
	id      uint64
	client  *client.Client
	local   *tables.Local  // instead of client
	running sync.WaitGroup // operations and scans; enter adds to it

	mu     sync.Mutex
	closed bool
	tables map[rowraft.TableID]*client.Table // by handle: a table's id, which is never used again
	scans  map[uint64]*scan
	found  *member.Saved // what the next job resumes from; nil: it is new
	job    *job          // that the client is in; nil: none
}

// newSession returns the number of a session.
func newSession(s *session) uint64 {
	s.scans = make(map[uint64]*scan)
	s.id = sessions.add(s)
	return s.id
}

// enter begins an operation, or returns false because the client is closed.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// close closes the client and waits for its operations. The caller is none of them.
func (s *session) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	scans, j := s.scans, s.job
	s.scans, s.job = nil, nil
	s.mu.Unlock()
	for _, c := range scans {
		c.cancel()
	}
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	s.running.Wait()
	if j != nil {
		j.mode.Wait()
	}
	sessions.remove(s.id)
	return err
}

// hold makes a handle for a table.
func (s *session) hold(t *client.Table) *client.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables[t.Schema().ID] = t
	return t
}

// table returns the table of a handle.
func (s *session) table(handle rowraft.TableID) (*client.Table, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[handle]; t != nil {
		return t, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeTableNotFound, "table %d is none of this client", handle)
}

// scan is a scan in progress. Its goroutine, that of Table.Scan, and next take turns with one message.
type scan struct {
	dim    int
	cancel context.CancelFunc
	rows   chan message  // from the goroutine
	taken  chan struct{} // next has used the last message
	ended  chan struct{} // closed at the end of the goroutine, after err is set
	err    error

	mu   sync.Mutex // of next
	rest message    // not copied yet
	owes bool       // the goroutine waits for taken
}

// message has rows of Table.Scan, which owns them until taken.
type message struct {
	keys    []rowraft.Key
	weights []float32
}

var errScanEnds = errors.New("the scan was closed")

// startScan starts to read the rows of a table with this dim, with Table.Scan or the like.
func (s *session) startScan(dim int, read func(context.Context, func([]rowraft.Key, []float32) error) error) (
	handle uint64, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &scan{dim: dim, cancel: cancel, rows: make(chan message), taken: make(chan struct{}),
		ended: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		return 0, rowraft.Errorf(rowraft.CodeClosing, "the client is closed")
	}
	s.running.Add(1)
	handle = scanHandles.Add(1)
	s.scans[handle] = c
	go func() {
		defer s.running.Done()
		defer close(c.ended)
		c.err = protect(func() (result, error) {
			return result{}, read(ctx, func(keys []rowraft.Key, weights []float32) error {
				select {
				case c.rows <- message{keys, weights}:
				case <-ctx.Done():
					return errScanEnds
				}
				select {
				case <-c.taken:
					return nil
				case <-ctx.Done():
					return errScanEnds
				}
			})
		}).err
	}()
	return handle, nil
}

// next fills keys, and the weights that room returns for the table's dim, with the next rows of a scan, and returns how
// many there were: fewer than fit only before the end, 0 at the end, after which the handle is gone.
func (s *session) next(ctx context.Context, handle uint64, keys []rowraft.Key, room func(dim int) []float32) (n int,
	err error) {
	s.mu.Lock()
	c := s.scans[handle]
	s.mu.Unlock()
	if c == nil {
		return 0, rowraft.Errorf(rowraft.CodeNotFound, "the scan has ended")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	weights := room(c.dim)
	for n < len(keys) {
		more, err := c.receive(ctx)
		if err != nil || !more && n == 0 {
			s.endScan(handle)
			return 0, err
		}
		if !more {
			break // the next call finds the end
		}
		taken := copy(keys[n:], c.rest.keys)
		copy(weights[n*c.dim:], c.rest.weights[:taken*c.dim])
		c.rest = message{c.rest.keys[taken:], c.rest.weights[taken*c.dim:]}
		n += taken
	}
	return n, nil
}

// receive returns whether rest has rows, which it takes from the goroutine if it has none.
func (c *scan) receive(ctx context.Context) (more bool, err error) {
	for len(c.rest.keys) == 0 {
		if c.owes {
			select {
			case c.taken <- struct{}{}:
				c.owes = false
			case <-c.ended:
				return false, c.err
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		select {
		case c.rest = <-c.rows:
			c.owes = true
		case <-c.ended:
			return false, c.err
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return true, nil
}

// endScan ends a scan, if it runs.
func (s *session) endScan(handle uint64) {
	s.mu.Lock()
	c := s.scans[handle]
	delete(s.scans, handle)
	s.mu.Unlock()
	if c != nil {
		c.cancel()
	}
}

// servers returns the servers of the cluster, by name.
func (s *session) servers(ctx context.Context) []serverJSON {
	m := s.client.Map()
	nodes := m.Servers()
	out := make([]serverJSON, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		out[i] = serverJSON{Name: n.Name, Addr: n.Addr, Leads: []uint32{}}
		wg.Go(func() { s.ask(ctx, &out[i]) })
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b serverJSON) int { return strings.Compare(a.Name, b.Name) })
	return out
}
