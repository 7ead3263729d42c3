package depot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
)

// Delete removes a checkpoint, its manifest first: whatever ends it half-way, no
// reader takes the rest for a checkpoint. It returns how many files and bytes
// there were. One that is being made is not made.
//
// Errors: CodeNotFound if nothing of that name lies there; CodeAlreadyExists of a
// checkpoint that a delta needs, or one that is being made.
func Delete(ctx context.Context, d Depot, name string, dryRun bool) (n int, bytes int64, err error) {
	t, err := look(ctx, d, name)
	if err != nil {
		return 0, 0, err
	}
	return t.delete(ctx, dryRun)
}

// DeleteTree removes a checkpoint and all deltas that stand on it, those first. It
// returns their names in that order.
//
// Errors: as Delete.
func DeleteTree(ctx context.Context, d Depot, name string,
	dryRun bool) (names []string, n int, bytes int64, err error) {
	w := &treeWalk{d: d, dryRun: dryRun, seen: make(map[string]bool)}
	err = w.delete(ctx, name)
	return w.names, w.n, w.bytes, err
}

// treeWalk deletes leaves first.
type treeWalk struct {
	d      Depot
	dryRun bool
	seen   map[string]bool
	names  []string
	n      int
	bytes  int64
}

func (w *treeWalk) delete(ctx context.Context, name string) error {
	w.seen[name] = true
	t, err := look(ctx, w.d, name)
	if err != nil {
		return err
	}
	for _, child := range t.needed {
		if w.seen[child] {
			continue // manifests that name each other
		}
		if err := w.delete(ctx, child); err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return err
		}
	}
	if w.dryRun {
		t.needed = nil
	} else if t, err = look(ctx, w.d, name); err != nil {
		return err
	}
	n, bytes, err := t.delete(ctx, w.dryRun)
	if err == nil {
		w.names, w.n, w.bytes = append(w.names, name), w.n+n, w.bytes+bytes
	}
	return err
}

// target is a checkpoint that is to be deleted.
type target struct {
	d      Depot
	name   string
	files  []Entry  // its own, and claims that it has elsewhere
	whole  bool     // it has a manifest
	needed []string // deltas that stand on it, or are being made
}

// look lists what lies there of name, and who needs it.
func look(ctx context.Context, d Depot, name string) (*target, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	entries, err := d.List(ctx, "")
	if err != nil {
		return nil, err
	}
	t := &target{d: d, name: name}
	for _, e := range entries {
		dir, file, _ := strings.Cut(e.Name, "/")
		delta, claim := claimOf(file)
		switch {
		case dir == name:
			t.files = append(t.files, e)
			t.whole = t.whole || file == checkpoint.ManifestFile
			if claim {
				t.needed = append(t.needed, delta)
			}
		case claim && delta == name:
			t.files = append(t.files, e)
		}
	}
	if len(t.files) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "no checkpoint %s in %s", name, d)
	}
	found, err := scan(ctx, d, entries)
	if err != nil {
		return nil, err
	}
	id := ""
	if self := found[name]; self != nil && self.Manifest != nil {
		id = self.Manifest.ID
	}
	for _, f := range found {
		if f.Manifest != nil && f.Manifest.Parent != nil && f.Manifest.Parent.Name == name &&
			(id == "" || f.Manifest.Parent.ID == id) {
			t.needed = append(t.needed, f.Name)
		}
	}
	slices.Sort(t.needed)
	t.needed = slices.Compact(t.needed)
	return t, nil
}

func (t *target) inUse(needed []string) error {
	return rowraft.Errorf(rowraft.CodeAlreadyExists,
		"checkpoint %s is kept by deltas to it, which are nothing without it, or what is left of one: %s: delete them first",
		t.name, strings.Join(needed, ", "))
}

func (t *target) delete(ctx context.Context, dryRun bool) (n int, bytes int64, err error) {
	if len(t.needed) > 0 {
		return 0, 0, t.inUse(t.needed)
	}
	var names, elsewhere, last []string
	for _, e := range t.files {
		switch dir, file, _ := strings.Cut(e.Name, "/"); {
		case dir != t.name:
			elsewhere = append(elsewhere, e.Name)
			continue
		case strings.HasPrefix(file, deletingPrefix):
			last = append(last, e.Name)
		default:
			names = append(names, e.Name)
		}
		n, bytes = n+1, bytes+e.Bytes
	}
	if dryRun {
		return n, bytes, nil
	}
	if t.whole {
		// Announced before anything is removed: a delta that begins now sees the announcement, or announce sees the delta's
		// claim.
		mine, err := t.announce(ctx)
		if err != nil {
			return 0, 0, err
		}
		last = append(last, mine)
	}
	manifest := []string{t.name + "/" + checkpoint.ManifestFile}
	order := [][]string{manifest, names, last, elsewhere}
	if !t.whole {
		// It may be being made. Who makes it looks after its manifest once more: for its
		// claim and its files.
		order = [][]string{elsewhere, names, last, manifest}
	}
	for i, list := range order {
		if err := t.d.Remove(ctx, list...); err != nil && i == 0 {
			return 0, 0, fmt.Errorf("delete checkpoint %s: %w", t.name, err)
		} else if err != nil {
			return 0, 0, fmt.Errorf("delete checkpoint %s, which is none any more: %w", t.name, err)
		}
	}
	return n, bytes, nil
}

// announce says that the checkpoint goes, and looks whether a delta was quicker.
func (t *target) announce(ctx context.Context) (file string, err error) {
	id := uuid.New()
	file = fmt.Sprintf("%s/%s%010d", t.name, deletingPrefix, id.ID())
	if err := t.d.Put(ctx, file, []byte("deleted\n")); err != nil {
		return "", err
	}
	entries, err := t.d.List(ctx, t.name)
	var needed []string
	for _, e := range entries {
		if delta, ok := claimOf(strings.TrimPrefix(e.Name, t.name+"/")); ok {
			needed = append(needed, delta)
		}
	}
	if err == nil && len(needed) > 0 {
		err = t.inUse(needed)
	}
	if err != nil {
		if left := t.d.Remove(context.WithoutCancel(ctx), file); left != nil {
			return "", fmt.Errorf("%w; no delta can begin on it until it is deleted: %v", err, left)
		}
		return "", err
	}
	return file, nil
}
