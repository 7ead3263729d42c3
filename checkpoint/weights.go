package checkpoint

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// RecordBytes is the size of a record of a table with schema s.
//
// Errors: CodeInvalidArgument if there is no such optimizer.
func RecordBytes(s *rowraft.Schema) (int, error) {
	rule, err := optim.New(s.Optimizer)
	if err != nil {
		return 0, err
	}
	return recordNumbers + s.WeightBytes() + 4*rule.StateLen(s.Dim), nil
}

// Weights reads a record of a table with schema s: dst gets its weights, s.Dim of
// them, and the key is returned. The record is one that a reader has given out.
func Weights(s *rowraft.Schema, record []byte, dst []float32) rowraft.Key {
	dtype := rowraft.Float32
	if s.Storage == rowraft.BFloat16 {
		dtype = s.Storage
	}
	wire.GetFloats(dst[:s.Dim], dtype, record[recordNumbers:])
	return rowraft.Key(le.Uint64(record[recordKey:]))
}
