// Package expand turns the local form of a snapshot, which refers to rows in files of the replica that wrote it, into
// the full form, which every replica can restore (docs/formats/cold-rows.md).
//
//	local form ─► checkpoint.Reader ─► Reader ─► checkpoint.Writer ─► full form
//	                    coldfile.File ─►
//
// It needs memory for one chunk of a snapshot and its rows, whatever the size of the snapshot.
package expand
