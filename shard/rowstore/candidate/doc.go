// Package candidate keeps the candidates of one slot: keys that were pushed but have no row yet
// (docs/formats/streaming.md). One goroutine changes a Set at a time.
package candidate
