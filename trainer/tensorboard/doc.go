// Package tensorboard writes scalars to event files for TensorBoard (docs/formats/tensorboard.md). One goroutine at
// a time uses a Writer.
package tensorboard
