// Package tablefile reads and writes the weights of one table in the file formats of other
// programs: safetensors, .npy, Parquet.
//
//	w, err := tablefile.Create("user.parquet", "", meta, tablefile.WriteOptions{})
//	err = w.Append(keys, values) // any number of times
//	err = w.Commit()             // the file gets its name; or w.Abort()
//
//	r, err := tablefile.Open("user.parquet", "", tablefile.ReadOptions{})
//	err = tablefile.Check(ctx, r, nil) // reads all of it: finite, no id twice
//	n, err := r.Next(keys, values)     // until io.EOF
//
// [WriteTensors] and [ReadTensors] do the same for named tensors, such as the dense weights of a model.
//
// A file contains only ids and vectors: no optimizer state, no
// versions, no counters. docs/import-export.md describes the content of a file and how other
// programs read it.
//
// # Invariants
//
//  1. A buffer limits the memory of both sides, whatever the size of a table.
//     (Parquet: a row group of groupBytes when writing, a page of
//     parquetguard.MaxPageBytes when reading.)
//  2. A name has a complete file or none: the writer uses a temporary
//     name, syncs the file, and then renames it.
//  3. Input is not trusted. Lengths are compared with the file before memory
//     is allocated or data is used. What does not fit is CodeCorrupt or, if the file
//     is valid but not a table, CodeInvalidArgument.
//
// One goroutine uses a Writer or a Reader.
package tablefile
