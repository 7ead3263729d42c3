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
//  4. No call to what Open returned outlives its context by more than two seconds, or waits
//     more than a minute for an answer (five for one to a write): a directory or an
//     endpoint that hangs keeps no lock of its caller. What it does later is undone.
//
// A Depot is safe for concurrent use; two writers of one name are not.
package depot
