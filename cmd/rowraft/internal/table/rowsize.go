package table

import (
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
)

// forecast holds the size of one row of a table in one replica.
type forecast struct {
	recordBytes int     // of a row in a snapshot and a checkpoint
	rowBytes    int     // of a row in memory, without the index
	indexBytes  float64 // a row, on average over the slots
}

// Constants of the layout of package rowstore.
const (
	minSegment = 16
	maxSegment = 8192
	indexEntry = 8
	untracked  = 8                  // bytes of a record that the memory of a table without policies does not have
	limits     = 16                 // loads at which segments grow, see fullAt
	fullMean   = (51 - 15.0/2) / 64 // their mean
)

// fullAt returns the load at which a sixteenth of the segments grow.
func fullAt(salt int) float64 { return float64(51-salt) / 64 }

// Package slab takes memory in chunks, and the first of them in steps.
const (
	chunkBytes = 2 << 20
	minFirst   = 4 << 10 // the first step
	lastUnused = 5 << 18 // measured average of unused bytes in the last chunk
)

// memoryBytes returns the memory of rows rows in shards shards.
func (f forecast) memoryBytes(rows float64, shards int) float64 {
	inShard := rows / float64(shards)
	return float64(shards) * (mapped(inShard*float64(f.rowBytes)) + mapped(inShard*f.indexBytes))
}

// mapped returns the memory that is taken when used bytes are used, on average.
func mapped(used float64) float64 {
	switch {
	case used == 0:
		return 0
	case used >= chunkBytes:
		return used + lastUnused
	}
	step := max(minFirst, math.Exp2(math.Floor(math.Log2(used)))/4)
	return min(max(minFirst, used+step/2), chunkBytes)
}

// newForecast forecasts the size of a table with schema s that holds the given number of rows in a cluster with the
// given number of slots. The hashes of the keys spread the rows over the slots.
//
// The segment of a slot has a power of two entries. It doubles when it is full, at one of several loads (limits). The
// number of rows in a slot is random, about normal. A segment of more than maxSegment entries is split at the same
// loads, so all loads occur at the same time: an entry then holds f·ln 2 of a row, where f is the mean of the limits.
//
// Errors: CodeInvalidArgument if s is not valid.
func newForecast(s rowraft.Schema, rows, slots float64) (forecast, error) {
	if err := s.Validate(); err != nil {
		return forecast{}, err
	}
	record, err := checkpoint.RecordBytes(&s)
	if err != nil {
		return forecast{}, err
	}
	f := forecast{recordBytes: record, rowBytes: (record + 7) &^ 7}
	if !s.Tracked() {
		f.rowBytes -= untracked
	}
	if rows < 1 {
		return f, nil
	}
	mean := rows / slots
	// below is the share of slots with at most n rows.
	below := func(n float64) float64 {
		return (1 + math.Erf((n+0.5-mean)/math.Sqrt(2*mean))) / 2
	}
	const perRow = 1 / (fullMean * math.Ln2)
	for salt := range limits {
		entries, from := 0.0, math.Exp(-mean) // an empty slot has no segment
		if mean > 50 {
			from = 0
		}
		for n := minSegment; n <= maxSegment; n *= 2 {
			to := max(from, below(math.Floor(float64(n)*fullAt(salt))))
			entries += float64(n) * (to - from)
			from = to
		}
		f.indexBytes += indexEntry * (entries/mean + (1-from)*perRow) / limits
	}
	return f, nil
}
