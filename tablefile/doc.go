// Package tablefile is the weights of one table in a file of somebody else's
// format: safetensors, .npy, Parquet.
//
//	w, err := tablefile.Create("user.parquet", "", meta, tablefile.WriteOptions{})
//	err = w.Append(keys, values) // any number of times
//	err = w.Commit()             // the file appears under its name; or w.Abort()
//
//	r, err := tablefile.Open("user.parquet", "", tablefile.ReadOptions{})
//	err = tablefile.Check(ctx, r, nil) // reads all of it: finite, no id twice
//	n, err := r.Next(keys, values)     // until io.EOF
//
// A file holds ids and vectors and nothing else of a row: no optimizer state, no
// versions, no counters. What is in a file and how other programs read it is
// described in docs/import-export.md.
//
// # Invariants
//
//  1. Memory is bounded on both sides by a buffer, whatever the size of a table.
//     (Parquet: by a row group of groupBytes when writing, by a page of
//     maxPageBytes when reading.)
//  2. A name shows a whole file or none: everything is written under a temporary
//     name, synced, then renamed.
//  3. What is read is foreign. Lengths are compared with the file before anything
//     is allocated or believed, and what does not fit is CodeCorrupt or, if the file
//     is sound but not a table, CodeInvalidArgument.
//
// A Writer or Reader is used by one goroutine.
package tablefile
