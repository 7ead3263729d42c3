package depot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/s3test"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
)

// depots runs f on each kind of depot.
func depots(t *testing.T, f func(t *testing.T, d Depot)) {
	t.Run("dir", func(t *testing.T) {
		d, err := Open(filepath.Join(t.TempDir(), "not", "yet"))
		if err != nil {
			t.Fatal(err)
		}
		f(t, d)
	})
	t.Run("s3", func(t *testing.T) {
		s3test.Setenv(t, "bucket")
		d, err := Open("s3://bucket/some/prefix/")
		if err != nil {
			t.Fatal(err)
		}
		f(t, d)
	})
}

func content(t *testing.T, d Depot, name string) []byte {
	t.Helper()
	r, err := d.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		if found, err := d.List(t.Context(), ""); err != nil || len(found) > 0 {
			t.Fatalf("an empty depot lists %v, %v", found, err)
		}
		big := make([]byte, 3*s3PartBytes/2) // more than one part of an upload
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(big)
		err := d.Write(t.Context(), "a/shard-0000.rows", func(w io.Writer) error {
			for chunk := range slices.Chunk(big, 300_000) {
				if _, err := w.Write(chunk); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range []string{"old", "new"} {
			if err := d.Put(t.Context(), "a/MANIFEST", []byte(b)); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Put(t.Context(), "b/small", []byte{7}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(content(t, d, "a/shard-0000.rows"), big) || string(content(t, d, "a/MANIFEST")) != "new" ||
			string(content(t, d, "b/small")) != "\a" {
			t.Error("what was read is not what was written")
		}
		all, err := d.List(t.Context(), "")
		want := []Entry{{"a/MANIFEST", 3}, {"a/shard-0000.rows", int64(len(big))}, {"b/small", 1}}
		if err != nil || !slices.Equal(all, want) {
			t.Errorf("List: %v, %v; want %v", all, err, want)
		}
		one, err := d.List(t.Context(), "a")
		if err != nil || !slices.Equal(one, want[:2]) {
			t.Errorf("List of a: %v, %v; want %v", one, err, want[:2])
		}
		if err := d.Remove(t.Context(), "a/MANIFEST", "a/shard-0000.rows", "a/never"); err != nil {
			t.Fatal(err)
		}
		_, err = d.Open(t.Context(), "a/MANIFEST")
		testutil.WantCodeOf(t, "open what was removed", err, rowraft.CodeNotFound)
		if all, err = d.List(t.Context(), ""); err != nil || !slices.Equal(all, want[2:]) {
			t.Errorf("List: %v, %v; want %v", all, err, want[2:])
		}
	})
}

func TestAFailedWriteLeavesNothing(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		broken := errors.New("the source broke")
		for _, size := range []int{10, s3PartBytes + 10} {
			err := d.Write(t.Context(), "a/x", func(w io.Writer) error {
				if _, err := w.Write(make([]byte, size)); err != nil {
					return err
				}
				return broken
			})
			if !errors.Is(err, broken) {
				t.Errorf("%d bytes: %v, want the error of the source", size, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := d.Write(ctx, "a/y", func(w io.Writer) error {
			cancel()
			_, err := w.Write(make([]byte, 2*s3PartBytes))
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after its context ended: %v", err)
		}
		if found, err := d.List(t.Context(), ""); err != nil || len(found) > 0 {
			t.Errorf("left behind: %v, %v", found, err)
		}
	})
}

// fullDisk lets so many bytes be written.
type fullDisk struct {
	vfs.FS
	left int
}

func (f *fullDisk) OpenFile(name string, flag int) (vfs.File, error) {
	file, err := f.FS.OpenFile(name, flag)
	return &fullFile{file, f}, err
}

type fullFile struct {
	vfs.File
	disk *fullDisk
}

func (f *fullFile) Write(p []byte) (int, error) {
	if len(p) > f.disk.left {
		n, _ := f.File.Write(p[:f.disk.left])
		f.disk.left = 0
		return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	f.disk.left -= len(p)
	return f.File.Write(p)
}

func TestAFullDiskIsToldAndLeavesNothing(t *testing.T) {
	disk := &fullDisk{FS: vfs.OS, left: 3 << 20}
	d := NewDir(disk, t.TempDir())
	fill := func(w io.Writer) error {
		_, err := w.Write(make([]byte, 5<<20))
		return err
	}
	err := d.Write(t.Context(), "a/x", fill)
	testutil.WantCodeOf(t, "write", err, rowraft.CodeOverloaded)
	if err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("%v, want it to say that the disk is full", err)
	}
	err = d.Put(t.Context(), "a/MANIFEST", []byte("x"))
	testutil.WantCodeOf(t, "put", err, rowraft.CodeOverloaded)
	if found, err := d.List(t.Context(), ""); err != nil || len(found) > 0 {
		t.Errorf("left behind: %v, %v", found, err)
	}
	disk.left = 10 << 20
	if err := d.Write(t.Context(), "a/x", fill); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestScanAndDelete(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		manifest, err := os.ReadFile("../testdata/manifest.txt")
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{
			"whole/MANIFEST": manifest, "whole/shard-0000.rows": []byte("12345"),
			"half/shard-0000.rows": []byte("12"), "bad/MANIFEST": []byte("rubbish"),
			"newer/MANIFEST": []byte("ROWRAFT-CHECKPOINT 9\n"),
		} {
			if err := d.Put(t.Context(), name, b); err != nil {
				t.Fatal(err)
			}
		}
		found, err := Scan(t.Context(), d)
		if err != nil || len(found) != 4 {
			t.Fatalf("%+v, %v", found, err)
		}
		bad, half, newer, whole := found[0], found[1], found[2], found[3]
		testutil.WantCodeOf(t, "bad", bad.Err, rowraft.CodeCorrupt)
		testutil.WantCodeOf(t, "newer", newer.Err, rowraft.CodeVersionTooNew)
		if half.Name != "half" || half.Manifest != nil || half.Err != nil || half.Bytes != 2 {
			t.Errorf("half: %+v", half)
		}
		if whole.Name != "whole" || whole.Manifest == nil || whole.Manifest.Rows() != 3 ||
			whole.Bytes != int64(len(manifest))+5 {
			t.Errorf("whole: %+v", whole)
		}
		if n, bytes, err := Delete(t.Context(), d, "whole", true); err != nil || n != 2 || bytes != whole.Bytes {
			t.Errorf("dry run: %d files, %d bytes, %v", n, bytes, err)
		}
		if left, err := d.List(t.Context(), "whole"); err != nil || len(left) != 2 {
			t.Errorf("a dry run left %v, %v", left, err)
		}
		if n, _, err := Delete(t.Context(), d, "whole", false); err != nil || n != 2 {
			t.Errorf("%d files, %v", n, err)
		}
		_, _, err = Delete(t.Context(), d, "whole", false)
		testutil.WantCodeOf(t, "delete twice", err, rowraft.CodeNotFound)
		_, err = checkpoint.ReadManifest(t.Context(), At(d, "whole"))
		testutil.WantCodeOf(t, "read what was deleted", err, rowraft.CodeNotFound)
	})
}

// TestOnlyOneIsNew: a second PutNew changes nothing.
func TestOnlyOneIsNew(t *testing.T) {
	depots(t, func(t *testing.T, d Depot) {
		if err := d.PutNew(t.Context(), "a/MANIFEST", []byte("first")); err != nil {
			t.Fatal(err)
		}
		testutil.WantCodeOf(t, "the second", d.PutNew(t.Context(), "a/MANIFEST", []byte("second")), rowraft.CodeAlreadyExists)
		if got := content(t, d, "a/MANIFEST"); string(got) != "first" {
			t.Errorf("it holds %q", got)
		}
		if found, err := d.List(t.Context(), "a"); err != nil || len(found) != 1 {
			t.Errorf("%v, %v", found, err)
		}
	})
}

// manifestFirst fails when anything but the manifest is removed.
type manifestFirst struct{ Depot }

func (d manifestFirst) Remove(ctx context.Context, names ...string) error {
	if len(names) != 1 || !strings.HasSuffix(names[0], "/MANIFEST") {
		return errors.New("the process was killed")
	}
	return d.Depot.Remove(ctx, names...)
}

func TestADeleteThatIsCutShortLeavesNoCheckpoint(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/MANIFEST", "a/shard-0000.rows"} {
		if err := d.Put(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Delete(t.Context(), manifestFirst{d}, "a", false); err == nil {
		t.Error("no error")
	}
	if found, err := Scan(t.Context(), d); err != nil || len(found) != 1 || found[0].Manifest != nil ||
		found[0].Err != nil {
		t.Errorf("%+v, %v; want one without a manifest", found, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	for _, url := range []string{"", "relative/dir", "gs://bucket/x", "s3://", "s3://bucket/x", "file://relative"} {
		_, err := Open(url)
		testutil.WantCodeOf(t, url, err, rowraft.CodeInvalidArgument)
	}
	s3test.Setenv(t, "bucket")
	d, err := Open("s3://no-such-bucket/x")
	if err != nil {
		t.Fatal(err)
	}
	err = d.Put(t.Context(), "a/b", nil)
	testutil.WantCodeOf(t, "a bucket that does not exist", err, rowraft.CodeNotFound)
}

func TestSplit(t *testing.T) {
	for url, want := range map[string][2]string{"/a/b/c": {"/a/b", "c"}, "s3://bucket/p/n-1": {"s3://bucket/p", "n-1"},
		"s3://bucket/n": {"s3://bucket", "n"}} {
		d, n, err := Split(url)
		if err != nil || d != want[0] || n != want[1] {
			t.Errorf("Split(%q) = %q, %q, %v", url, d, n, err)
		}
	}
	for _, url := range []string{"name", "/a/", "/a/..", ""} {
		_, _, err := Split(url)
		testutil.WantCodeOf(t, url, err, rowraft.CodeInvalidArgument)
	}
}

func TestNameOfTheTime(t *testing.T) {
	at := time.Date(2026, 1, 2, 4, 5, 6, 7, time.FixedZone("CET", 3600))
	if name := NameAt(at, "abcdef00"); name != "20260102T030506Z-abcd" || CheckName(name) != nil {
		t.Errorf("the name is %q, %v", name, CheckName(name))
	}
}
