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

// batchRows is how many rows are read in one step.
func batchRows(dim int) int { return min(max(1<<20/max(dim, 1), 1), 4096) }

// sortedKeys is how many ids are sorted at a time to detect a repeated one: 128 MiB.
const sortedKeys = 16 << 20

// Check reads the whole file and returns the first reason why it cannot be a table: damage, numbers that
// are not finite, repeated ids. Afterwards the next row is the first one. If tell is not nil, Check reports
// to it how many rows it has read, first of vectors and then of ids.
//
// Memory is limited: Check reads the ids of a file with more than 16 Mi rows more than once.
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
				return invalidf("file %s: row %d (id %d), number %d is %v: weights must be finite as float32",
					r.path, rows+uint64(i/info.Dim), keys[i/info.Dim], i%info.Dim, v)
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

// checkKeys returns an error for a repeated id. Ids in ascending order need no memory. Otherwise it divides
// the ids by hash into as many shares as needed, so that each share fits most, and sorts one share at a
// time.
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
				return invalidf("id %d occurs twice: remove one of its vectors", gathered[i])
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
