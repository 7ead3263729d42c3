// Package tensorboard writes scalars to event files, as TensorBoard reads them
// (docs/formats/tensorboard.md). A Writer is used by one goroutine at a time.
package tensorboard
