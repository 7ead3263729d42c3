package depot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
)

// Found is one checkpoint of a depot, whole or not.
type Found struct {
	Name     string
	Manifest *checkpoint.Manifest // nil if there is none or it cannot be read
	// Err is the reason why it cannot be restored. Its manifest cannot be read; or, with a Manifest, a file is missing or
	// has another size, or Verify has found damage, or the checkpoint that it extends is missing or has such an error.
	Err      error
	Verified bool  // Verify has found it whole
	Bytes    int64 // of all files that lie there
	Deltas   int   // how many deltas it stands on, itself included
	Deleting bool  // its deletion has begun
}

// Usable reports whether it can be restored, as far as manifests, the sizes of files and
// what Verify has found tell.
func (f *Found) Usable() bool { return f.Manifest != nil && f.Err == nil }

// Scan lists what lies in d, oldest first; of those with a manifest it is read, of the
// rest of the files only their sizes.
func Scan(ctx context.Context, d Depot) ([]Found, error) {
	entries, err := d.List(ctx, "")
	if err != nil {
		return nil, err
	}
	byName, err := scan(ctx, d, entries)
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, f := range byName {
		checkParents(byName, f)
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Found) int {
		return cmp.Or(a.created().Compare(b.created()), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// scan gathers entries by checkpoint and reads the manifests. A depot that hangs is not
// one with damaged manifests.
func scan(ctx context.Context, d Depot, entries []Entry) (map[string]*Found, error) {
	byName, damaged := make(map[string]*Found), make(map[string]bool)
	sizes := make(map[string]int64, len(entries))
	for _, e := range entries {
		name, file, ok := strings.Cut(e.Name, "/")
		if !ok || CheckName(name) != nil {
			continue
		}
		f := byName[name]
		if f == nil {
			f = &Found{Name: name}
			byName[name] = f
		}
		f.Bytes += e.Bytes
		sizes[e.Name] = e.Bytes
		switch {
		case file == verifiedFile:
			f.Verified = true
		case file == damagedFile:
			damaged[name] = true
		case file == checkpoint.ManifestFile:
			f.Manifest, f.Err = checkpoint.ReadManifest(ctx, At(d, name))
			if hang := hangError(""); errors.As(f.Err, &hang) || f.Err != nil && ctx.Err() != nil {
				return nil, f.Err
			}
		case strings.HasPrefix(file, deletingPrefix):
			f.Deleting = true
		}
	}
	for name, f := range byName {
		if f.Manifest == nil {
			continue
		}
		f.Err = checkSizes(name, f.Manifest, sizes)
		if damaged[name] {
			why, err := readSmall(ctx, d, name+"/"+damagedFile)
			if err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
				return nil, err
			}
			f.Err = errors.Join(f.Err, rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s: a verification has found: %s", name,
				why))
		}
	}
	return byName, nil
}

// checkSizes reports the first file of a checkpoint that is not there as the manifest says.
func checkSizes(name string, m *checkpoint.Manifest, sizes map[string]int64) error {
	for _, f := range m.Files() {
		switch n, there := sizes[name+"/"+f.Name]; {
		case f.Bytes == 0: // a depot has no empty files
		case !there:
			return rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s: file %s is missing", name, f.Name)
		case n != f.Bytes:
			return rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s: file %s has %d bytes, the manifest says %d", name, f.Name,
				n, f.Bytes)
		}
	}
	return nil
}

// checkParents finds what f stands on.
func checkParents(byName map[string]*Found, f *Found) {
	for at := f; at != nil && at.Manifest != nil && at.Manifest.Parent != nil; {
		p := at.Manifest.Parent
		f.Deltas++
		parent := byName[p.Name]
		if parent == nil || parent.Manifest == nil || parent.Manifest.ID != p.ID {
			f.Err = rowraft.Errorf(rowraft.CodeNotFound, "checkpoint %s is a delta to %s with id %s, which is missing", at.Name,
				p.Name, p.ID)
			return
		}
		if f.Deltas > checkpoint.MaxDeltas {
			f.Err = rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s stands on more than %d deltas", f.Name,
				checkpoint.MaxDeltas)
			return
		}
		if f.Err == nil && parent.Err != nil {
			f.Err = fmt.Errorf("checkpoint %s is a delta that stands on %s: %w", f.Name, p.Name, parent.Err)
			return
		}
		at = parent
	}
}

func (f *Found) created() time.Time {
	if f.Manifest == nil {
		return time.Time{}
	}
	return f.Manifest.Created
}
