package depot

import (
	"cmp"
	"context"
	"errors"
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
	// Err is why it cannot be restored: its manifest cannot be read, or, beside a
	// Manifest, what it is a delta to is not there.
	Err      error
	Bytes    int64 // of all files that lie there
	Deltas   int   // how many deltas it stands on, itself included
	Deleting bool  // somebody began to delete it
}

// Usable reports whether it can be restored, as far as manifests tell.
func (f *Found) Usable() bool { return f.Manifest != nil && f.Err == nil }

// Scan lists what lies in d, oldest first; of those with a manifest it is read, the
// rest of the files is not.
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
	byName := make(map[string]*Found)
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
		switch {
		case file == checkpoint.ManifestFile:
			f.Manifest, f.Err = checkpoint.ReadManifest(ctx, At(d, name))
			if hang := hangError(""); errors.As(f.Err, &hang) || f.Err != nil && ctx.Err() != nil {
				return nil, f.Err
			}
		case strings.HasPrefix(file, deletingPrefix):
			f.Deleting = true
		}
	}
	return byName, nil
}

// checkParents finds what f stands on.
func checkParents(byName map[string]*Found, f *Found) {
	for at := f; at != nil && at.Manifest != nil && at.Manifest.Parent != nil; {
		p := at.Manifest.Parent
		f.Deltas++
		parent := byName[p.Name]
		if parent == nil || parent.Manifest == nil || parent.Manifest.ID != p.ID {
			f.Err = rowraft.Errorf(rowraft.CodeNotFound, "checkpoint %s is a delta to %s with id %s, which is missing", at.Name, p.Name, p.ID)
			return
		}
		if f.Deltas > checkpoint.MaxDeltas {
			f.Err = rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s stands on more than %d deltas", f.Name, checkpoint.MaxDeltas)
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
