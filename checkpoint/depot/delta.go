package depot

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
)

// A delta keeps its parent by a file in the parent's directory, and who deletes a
// checkpoint says so by one, too: docs/formats/checkpoint.md, "Order of writing".
const (
	deltaPrefix    = "DELTA-"
	deletingPrefix = "DELETING-"
)

// Claim is how a delta keeps its parent.
type Claim struct {
	d        Depot
	parent   string
	parentID string
	file     string
}

// NewClaim keeps parent, whose manifest has parentID, for the delta name with id.
// The delta's manifest may be written once Keep succeeded, and stands if Check does
// afterwards.
func NewClaim(d Depot, parent, parentID, name string, id uuid.UUID) *Claim {
	return &Claim{d, parent, parentID, fmt.Sprintf("%s/%s%s-%x", parent, deltaPrefix, name, id[:4])}
}

// Keep writes the claim and looks whether it was in time.
//
// Errors: CodeNotFound if the parent is missing or being deleted.
func (c *Claim) Keep(ctx context.Context) error {
	if err := c.d.Put(ctx, c.file, []byte(c.parentID+"\n")); err != nil {
		return err
	}
	return c.Check(ctx)
}

// Check looks whether the parent is there and stays.
//
// Errors: CodeNotFound if not.
func (c *Claim) Check(ctx context.Context) error {
	gone := func(why string) error {
		return rowraft.Errorf(rowraft.CodeNotFound, "the base %s of the delta %s", c.parent, why)
	}
	entries, err := c.d.List(ctx, c.parent)
	if err != nil {
		return err
	}
	kept := false
	for _, e := range entries {
		kept = kept || e.Name == c.file
		if strings.HasPrefix(e.Name, c.parent+"/"+deletingPrefix) {
			return gone("is being deleted")
		}
	}
	m, err := checkpoint.ReadManifest(ctx, At(c.d, c.parent))
	switch {
	case rowraft.CodeOf(err) == rowraft.CodeNotFound || err == nil && m.ID != c.parentID:
		return gone("was deleted")
	case err != nil:
		return err
	case !kept:
		return gone("is not kept any more: the delta was deleted in the meantime")
	}
	return nil
}

// Drop gives the parent free.
func (c *Claim) Drop(ctx context.Context) error { return c.d.Remove(ctx, c.file) }

// claimOf returns the name of the delta that a file keeps its directory for.
func claimOf(file string) (delta string, ok bool) {
	rest, ok := strings.CutPrefix(file, deltaPrefix)
	if i := strings.LastIndexByte(rest, '-'); ok && i > 0 && CheckName(rest[:i]) == nil {
		return rest[:i], true
	}
	return "", false
}
