package depot

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
)

// kept is which checkpoints were acknowledged.
type kept struct{ full, delta bool }

// makeBoth makes a full checkpoint and a delta to it in a directory.
func makeBoth(t *testing.T, disk vfs.FS, acked *kept) error {
	d, ctx := NewDir(disk, "/mnt/checkpoints"), context.Background()
	err := d.Write(ctx, "a/shard-0000.rows", func(w io.Writer) error {
		_, err := io.WriteString(w, "rows")
		return err
	})
	if err != nil {
		return err
	}
	if err := d.PutNew(ctx, "a/MANIFEST", manifestOf(t, "id-a", time.Hour, nil)); err != nil {
		return err
	}
	acked.full = true
	if err := putDelta(ctx, t, d, "b", uuid.UUID{1}, "a", "id-a"); err != nil {
		return err
	}
	acked.delta = true
	return nil
}

// lookAndDelete checks the checkpoints, deletes them by name and makes them again: after the deletion, the remains of a
// crash, such as a claim of PutNew, block no write.
func lookAndDelete(t *testing.T, disk vfs.FS, acked kept) (kept, error) {
	d, ctx := NewDir(disk, "/mnt/checkpoints"), context.Background()
	found, err := Scan(ctx, d)
	if err != nil {
		return acked, err
	}
	there := map[string]bool{}
	for _, f := range found {
		if f.Err != nil {
			return acked, fmt.Errorf("%s: %w", f.Name, f.Err)
		}
		there[f.Name] = f.Manifest != nil
		if r, err := d.Open(ctx, f.Name+"/shard-0000.rows"); f.Manifest != nil && err != nil {
			return acked, fmt.Errorf("%s is a checkpoint without its rows: %w", f.Name, err)
		} else if err == nil {
			b, err := io.ReadAll(r)
			if err == nil {
				err = r.Close()
			}
			if err != nil || f.Manifest != nil && string(b) != "rows" {
				return acked, fmt.Errorf("%s is a checkpoint with rows %q, %v", f.Name, b, err)
			}
		}
	}
	if acked.full && !there["a"] || acked.delta && !there["b"] {
		return acked, fmt.Errorf("there is %v of %+v", there, acked)
	}
	if err := deleteBoth(d, &acked); err != nil {
		return acked, err
	}
	if left, err := d.List(ctx, ""); err != nil || len(left) > 0 {
		return acked, fmt.Errorf("left: %v, %v", left, err)
	}
	err = makeBoth(t, disk, &acked)
	return acked, err
}

// deleteBoth deletes the delta and then what it stands on.
func deleteBoth(d Depot, acked *kept) error {
	for _, name := range []string{"b", "a"} {
		acked.delta = false
		acked.full = acked.full && name == "b"
		if _, _, err := Delete(context.Background(), d, name, false); err != nil &&
			rowraft.CodeOf(err) != rowraft.CodeNotFound {
			return err
		}
	}
	return nil
}

func TestCrashAtEachStepOfACheckpointAndADelta(t *testing.T) {
	vfstest.Crashes(t, vfstest.Script[kept]{
		Seeds: 2,
		Run: func(disk vfs.FS, acked *kept) error {
			if err := makeBoth(t, disk, acked); err != nil {
				return err
			}
			return deleteBoth(NewDir(disk, "/mnt/checkpoints"), acked)
		},
		Check:   func(disk vfs.FS, acked kept) (kept, error) { return lookAndDelete(t, disk, acked) },
		Shallow: true,
	}, map[string]string{
		"checkpoint/depot.(*Dir).Put: sync DELETING-": "its name alone counts",
		"checkpoint/depot.(*Dir).Put: sync DELTA-":    "its name alone counts",
		"checkpoint/depot.(*Dir).Write: syncdir a":    "that of the manifest comes after it",
		"checkpoint/depot.(*Dir).Remove: syncdir": "here the names of a directory go in the order of their removal, " +
			"and each of the two makes the other durable",
	})
}

// TestAClaimThatACrashLeft: it blocks no reader, and no writer after the remains were deleted.
func TestAClaimThatACrashLeft(t *testing.T) {
	for _, whole := range []bool{false, true} {
		d := NewDir(vfs.OS, t.TempDir())
		if whole {
			putBase(t, d, "a", "id-a")
		}
		if err := d.Put(t.Context(), "a/MANIFEST.claim", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := states(t, d)["a"]; whole != strings.HasPrefix(got, "usable") {
			t.Errorf("with a manifest: %v; it is %s", whole, got)
		}
		testutil.WantCodeOf(t, "another manifest", d.PutNew(t.Context(), "a/MANIFEST", []byte("x")),
			rowraft.CodeAlreadyExists)
		if _, _, err := Delete(t.Context(), d, "a", false); err != nil {
			t.Fatal(err)
		}
		if err := d.PutNew(t.Context(), "a/MANIFEST", []byte("x")); err != nil {
			t.Errorf("after it was deleted: %v", err)
		}
	}
}
