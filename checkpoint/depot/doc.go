// Package depot is where checkpoints are kept: a directory that all servers
// share, or a bucket with a prefix.
//
//	scheduler, node ──Write, Put──► Depot ──► Dir │ S3
//	cmd, scheduler  ◄──Open, List──
//
// A depot holds files under slash-separated names, one level of checkpoints
// deep: NAME/MANIFEST, NAME/shard-0000.rows …
//
// # Invariants
//
//  1. A file that Write or Put reported as written is durable.
//  2. Put replaces a file as a whole: a reader sees all of it or none. That is
//     what makes a manifest the last word.
//  3. A failed Write leaves no file, if the depot still answers.
//
// A Depot is safe for concurrent use; two writers of one name are not.
package depot
