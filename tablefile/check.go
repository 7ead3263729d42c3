package tablefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// batchRows is how many rows are looked at in one step.
func batchRows(dim int) int { return min(max(1<<20/max(dim, 1), 1), 4096) }

// sortedKeys is how many ids are sorted at once to find one that stands twice: 128
// MiB of them.
const sortedKeys = 16 << 20

// Check reads all of a file and reports the first thing that makes it unfit as a
// table: what is damaged, numbers that are not finite, ids that stand twice. The
// next row is then the first one. tell, if not nil, hears how many rows were
// read, of vectors first and of ids then.
//
// Memory is bounded: the ids of a file with more than 16 Mi rows are read more
// than once.
//
// Errors: CodeInvalidArgument, CodeCorrupt; those of the disk and of ctx.
func Check(ctx context.Context, r *Reader, tell func(rows int)) error {
	return check(ctx, r, tell, sortedKeys)
}

func check(ctx context.Context, r *Reader, tell func(int), most int) error {
	if tell == nil {
		tell = func(int) {}
	}
	if err := r.Rewind(); err != nil {
		return err
	}
	if err := checkNumbers(ctx, r, tell); err != nil {
		return err
	}
	if err := checkKeys(ctx, r, tell, most); err != nil {
		return fmt.Errorf("file %s: %w", r.path, err)
	}
	return r.Rewind()
}

func checkNumbers(ctx context.Context, r *Reader, tell func(int)) error {
	info := r.Info()
	n := batchRows(info.Dim)
	keys, values := make([]rowraft.Key, n), make([]float32, n*info.Dim)
	rows := uint64(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Next(keys, values)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for i, v := range values[:n*info.Dim] {
			if !finite(v) {
				return invalidf("file %s: row %d (id %d), number %d is %v: weights must be finite as float32", r.path, rows+uint64(i/info.Dim), keys[i/info.Dim], i%info.Dim, v)
			}
		}
		rows += uint64(n)
		tell(n)
	}
	if rows != info.Rows {
		return corruptf("file %s: it says that it has %d rows, and has %d", r.path, info.Rows, rows)
	}
	return nil
}

// checkKeys reports an id that stands twice. Ids in ascending order need no
// memory; others are gathered and sorted, in as many shares, by hash, as make each
// fit most.
func checkKeys(ctx context.Context, r *Reader, tell func(int), most int) error {
	rows := r.Info().Rows
	shares := rows/uint64(most) + 1
	var gathered []rowraft.Key
	for share := range shares {
		gathered = gathered[:0]
		ascending, last := true, rowraft.Key(0)
		err := eachKey(ctx, r, tell, func(i uint64, k rowraft.Key) {
			ascending = ascending && (i == 0 || last < k)
			last = k
			if shares == 1 || clustermap.Mix64(uint64(k))%shares == share {
				gathered = append(gathered, k)
			}
		})
		if err != nil {
			return err
		}
		if ascending {
			return nil
		}
		slices.Sort(gathered)
		for i := 1; i < len(gathered); i++ {
			if gathered[i] == gathered[i-1] {
				return invalidf("id %d stands twice: which vector is meant?", gathered[i])
			}
		}
	}
	return nil
}

func eachKey(ctx context.Context, r *Reader, tell func(int), f func(i uint64, k rowraft.Key)) error {
	if err := r.Rewind(); err != nil {
		return err
	}
	keys := make([]rowraft.Key, batchRows(1))
	for i := uint64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.NextKeys(keys)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, k := range keys[:n] {
			f(i, k)
			i++
		}
		tell(n)
	}
}
