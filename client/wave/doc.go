// Package wave sends the first tries of the batches of one push or step together: one call for each server. Pulls use
// its calls ([Shared]) without a wave, on streams of package pullstream.
package wave
