package tables

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Cluster implements [Tables] with a client. Close the client, not the Cluster.
type Cluster struct {
	client   *client.Client
	openOnly bool // EnsureTable creates nothing
	job      *client.Job
	reads    ReadConfig

	mu     sync.RWMutex
	tables map[rowraft.TableID]*client.Table
}

var (
	_ Tables      = (*Cluster)(nil)
	_ Initializer = (*Cluster)(nil)
)

// NewCluster returns Tables over c.
func NewCluster(c *client.Client) *Cluster {
	return &Cluster{client: c, tables: make(map[rowraft.TableID]*client.Table)}
}

// OpenCluster is NewCluster for existing tables: EnsureTable fails with CodeTableNotFound for others. A certificate of
// the role reader is enough for it.
func OpenCluster(c *client.Client) *Cluster {
	t := NewCluster(c)
	t.openOnly = true
	return t
}

// EnsureTable implements [Tables].
func (c *Cluster) EnsureTable(ctx context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	ensure := c.create
	if c.openOnly {
		ensure = c.open
	}
	t, err := ensure(ctx, s)
	if err != nil {
		return rowraft.Schema{}, err
	}
	c.mu.Lock()
	c.tables[t.Schema().ID] = t
	c.mu.Unlock()
	return t.Schema(), nil
}

// create returns the table of s, and creates it if there is none.
func (c *Cluster) create(ctx context.Context, s rowraft.Schema) (*client.Table, error) {
	return c.client.CreateTable(ctx, s, true)
}

// open returns the table of s. It calls nothing that a reader may not call.
func (c *Cluster) open(ctx context.Context, s rowraft.Schema) (*client.Table, error) {
	t, err := c.client.Table(ctx, s.Name)
	if err != nil {
		return nil, err
	}
	if have := t.Schema(); !have.SameShape(s) {
		return nil, rowraft.Errorf(rowraft.CodeTableExists,
			"table %s exists with another shape: it has dim %d, %s, seed %d; asked for is dim %d, %s, seed %d", s.Name,
			have.Dim, have.Optimizer.Kind, have.Initializer.Seed, s.Dim, s.Optimizer.Kind, s.Initializer.Seed)
	}
	return t, nil
}

// segments looks up the tables of segs.
func (c *Cluster) segments(segs []Segment) ([]client.Segment, error) {
	out := make([]client.Segment, len(segs))
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i, s := range segs {
		t := c.tables[s.Table]
		if t == nil {
			return nil, rowraft.Errorf(rowraft.CodeTableNotFound, "table %d was not opened with EnsureTable", s.Table)
		}
		out[i] = client.Segment{Table: t, Keys: s.Keys, Values: s.Values, LR: s.LR, Reuse: s.Reuse}
	}
	return out, nil
}

// Pull implements [Tables].
func (c *Cluster) Pull(ctx context.Context, segs []Segment) error {
	_, err := c.PullAged(ctx, segs)
	return err
}

// Copies implements [Tables].
func (c *Cluster) Copies() client.Copies { return c.client.Copies() }

// Push implements [Tables].
func (c *Cluster) Push(ctx context.Context, segs []Segment) error {
	s, err := c.segments(segs)
	if err != nil {
		return err
	}
	_, err = c.client.Push(ctx, s...)
	return err
}

// Present implements [Initializer].
func (c *Cluster) Present(ctx context.Context, seg Segment, present []bool) error {
	s, err := c.segments([]Segment{seg})
	if err != nil {
		return err
	}
	s[0].Present = present
	return c.client.PullLinearizable(ctx, s...)
}

// Claim implements [Initializer], with a client of that name.
//
// Errors: CodePrecondition for a Cluster of OpenCluster.
func (c *Cluster) Claim(ctx context.Context, name string) (Assigner, error) {
	if c.openOnly {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the dense weights are not initialized: train first")
	}
	sum := sha256.Sum256([]byte("rowraft first weights\x00" + name))
	fenced, err := c.client.Fenced(ctx, rowraft.ClientID(sum[:16]))
	if err != nil {
		return nil, err
	}
	return &claim{fenced, c}, nil
}

// claim assigns with a client of its own.
type claim struct {
	client  *client.Client
	cluster *Cluster
}

// Assign implements [Assigner].
func (a *claim) Assign(ctx context.Context, segs []Segment) error {
	s, err := a.cluster.segments(segs)
	if err != nil {
		return err
	}
	for i := range s {
		schema := s[i].Table.Schema()
		if s[i].Table, err = a.client.Table(ctx, schema.Name); err != nil {
			return err
		}
	}
	_, err = a.client.Assign(ctx, s...)
	return err
}

// Close implements [Assigner].
func (a *claim) Close() error { return a.client.Close() }

// KeyPerShard implements [Tables].
func (c *Cluster) KeyPerShard(_ context.Context, table rowraft.TableID) ([]rowraft.Key, error) {
	keys, err := keyPerShard(c.client.Map(), table)
	if err != nil {
		return nil, fmt.Errorf("audit rows: %w", err)
	}
	return keys, nil
}
