package depot

import (
	"context"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Depot is one place with checkpoints.
type Depot interface {
	// String is what Open takes.
	String() string
	// Write makes the file name of what fill writes, at least one byte, and returns
	// once it is durable. After an error there is no such file. In a depot that hangs
	// fill may run on, until its writer fails.
	Write(ctx context.Context, name string, fill func(io.Writer) error) error
	// Put makes or replaces a small file, of at least one byte, at one stroke.
	Put(ctx context.Context, name string, content []byte) error
	// PutNew is Put of a file that must not be there: CodeAlreadyExists. Of two at
	// once one succeeds at most.
	PutNew(ctx context.Context, name string, content []byte) error
	// Open reads a file. CodeNotFound if there is none.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// List names every file below the checkpoint name, or below all if name is "".
	List(ctx context.Context, name string) ([]Entry, error)
	// Remove removes files; one that is not there is no error.
	Remove(ctx context.Context, names ...string) error
}

// Entry is one file.
type Entry struct {
	Name  string // NAME/FILE
	Bytes int64
}

// Open returns the depot at url: s3://bucket/prefix, or an absolute path on a
// disk. It does not look whether anything is there. Its calls, and those of the files
// that it opens, end when their context does, or with CodePrecondition when the place
// hangs.
//
// Errors: CodeInvalidArgument.
func Open(url string) (Depot, error) {
	if rest, ok := strings.CutPrefix(url, "s3://"); ok {
		d, err := openS3(rest)
		if err != nil {
			return nil, err
		}
		return &patient{d}, nil
	}
	if scheme, _, ok := strings.Cut(url, "://"); ok && scheme != "file" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint destination %q: want s3://bucket/prefix or an absolute path", url)
	}
	dir := strings.TrimPrefix(url, "file://")
	if !filepath.IsAbs(dir) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint destination %q: want s3://bucket/prefix or an absolute path: every server reads and writes it", url)
	}
	return &patient{NewDir(vfs.OS, filepath.Clean(dir))}, nil
}

// CheckName reports a name that no checkpoint can have, as CodeInvalidArgument.
func CheckName(name string) error { return checkpoint.CheckName(name) }

// NameAt returns the name of a checkpoint that got none: the time, and the first four digits of id, which its caller
// draws.
func NameAt(t time.Time, id string) string { return t.UTC().Format("20060102T150405Z") + "-" + id[:4] }

// Split cuts DESTINATION/NAME at its last slash.
func Split(url string) (destination, name string, err error) {
	i := strings.LastIndexByte(url, '/')
	if i < 1 {
		return "", "", rowraft.Errorf(rowraft.CodeInvalidArgument, "checkpoint %q: want DESTINATION/NAME", url)
	}
	return url[:i], url[i+1:], CheckName(url[i+1:])
}

// At are the files of one checkpoint, as package checkpoint reads them.
func At(d Depot, name string) checkpoint.Files { return files{d, name} }

// Chain opens a checkpoint of d with what it stands on.
func Chain(ctx context.Context, d Depot, name string) (checkpoint.Chain, error) {
	return checkpoint.OpenChain(ctx, func(name string) checkpoint.Files { return At(d, name) }, name)
}

type files struct {
	d    Depot
	name string
}

func (f files) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.d.Open(ctx, path.Join(f.name, name))
}
