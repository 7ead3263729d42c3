package depot

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
)

// Files that Verify leaves in a checkpoint, so that it need not be read again to know.
const (
	verifiedFile = "VERIFIED" // every byte was read and found right
	damagedFile  = "DAMAGED"  // it was not; the content says why
)

// Verify reads every byte of a checkpoint with what it stands on, and leaves a file there
// that says what came of it, which Scan knows. Where it may not write it leaves none.
//
// Errors: CodeCorrupt; those of Chain and of the depot.
func Verify(ctx context.Context, d Depot, name string,
	progress func(int)) (checkpoint.Chain, checkpoint.TableRows, error) {
	chain, err := Chain(ctx, d, name)
	var rows checkpoint.TableRows
	if err == nil {
		rows, err = chain.Verify(ctx, progress)
	}
	switch {
	case err == nil:
		note(ctx, d, name, verifiedFile, damagedFile, chain.Manifest().ID+"\n")
	case rowraft.CodeOf(err) == rowraft.CodeCorrupt:
		note(ctx, d, name, damagedFile, verifiedFile, err.Error()+"\n")
	}
	return chain, rows, err
}

// note writes one of the two files in the place of the other. An error changes nothing about
// what was found.
func note(ctx context.Context, d Depot, name, file, other, content string) {
	_ = d.Remove(ctx, name+"/"+other)
	_ = d.Put(ctx, name+"/"+file, []byte(content))
}

// readSmall reads the first kilobyte of a file.
func readSmall(ctx context.Context, d Depot, name string) (text string, err error) {
	r, err := d.Open(ctx, name)
	if errors.Is(err, os.ErrPermission) {
		return "damage", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b, err := io.ReadAll(io.LimitReader(r, 1024))
	return string(b), err
}
