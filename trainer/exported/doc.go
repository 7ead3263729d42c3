// Package exported writes a trained model to a directory and reads it from there: the dense weights and the rows of the
// embeddings in safetensors files, and one JSON file with what a program needs to compute the same scores.
// docs/formats/model-export.md has the content.
//
//	m, err := exported.Open(ctx, dir)      // checks every byte
//	cfg := m.Config()                      // the job; add the data, as trainer.LoadModel
//	job, err := trainer.NewJob(ctx, cfg, m, nil) // m is its tables
//
// # Invariants
//
//  1. A directory is complete or absent: Write uses a temporary name.
//  2. A score of a directory has the bits of the score with the tables it was made from, if they have not changed and
//     the machine is the same. An id without a row has its initial weights in both.
//  3. Write needs memory for the dense weights and some batches of rows, whatever the size of the tables. Open reads
//     all of them into memory.
//  4. Input is not trusted: checksums, lengths and names are checked before data is used.
//
// A Model is immutable and safe for concurrent use.
package exported
