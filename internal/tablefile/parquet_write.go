package tablefile

import (
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/rowraft/rowraft"
)

// Names of the columns unless ReadOptions set others.
const (
	idColumn     = "id"
	vectorColumn = "embedding"
)

const (
	// groupBytes is the size of a row group, which the writer keeps in memory until it is complete; readers
	// process one group, or its columns, at a time.
	groupBytes = 32 << 20
	pageBytes  = 1 << 20
)

// parquetRow is the schema, which the library reads by reflection.
type parquetRow struct {
	ID        uint64    `parquet:"id"`
	Embedding []float32 `parquet:"embedding,list"`
}

type parquetWriter struct {
	w       *parquet.GenericWriter[parquetRow]
	dim     int
	group   int // size of a row group in bytes
	inGroup int // rows in the present group
	values  []parquet.Value
}

func newParquetWriter(out *output, meta Meta, group int) *parquetWriter {
	options := []parquet.WriterOption{
		parquet.CreatedBy("rowraft", "1.0.0", "tablefile"),
		parquet.PageBufferSize(pageBytes),
		parquet.DefaultEncoding(&parquet.Plain),
		parquet.SkipPageBounds(vectorColumn, "list", "element"), // no reader searches for a number
		parquet.Compression(&parquet.Uncompressed),              // the bits of weights are noise
	}
	for _, m := range sortedMeta(meta) {
		options = append(options, parquet.KeyValueMetadata(m[0], m[1]))
	}
	return &parquetWriter{w: parquet.NewGenericWriter[parquetRow](out, options...), dim: meta.Dim, group: group}
}

func sortedMeta(m Meta) (out [][2]string) {
	for name, value := range m.strings() {
		out = append(out, [2]string{name, value})
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out
}

func (w *parquetWriter) append(keys []rowraft.Key, values []float32) error {
	columns := w.w.ColumnWriters()
	w.values = w.values[:0]
	for _, k := range keys {
		w.values = append(w.values, parquet.Int64Value(int64(k)).Level(0, 0, 0))
	}
	if _, err := columns[0].WriteRowValues(w.values); err != nil {
		return err
	}
	// The library does not split a call between pages, so a call has at most as many rows as a page should have.
	step := max(pageBytes/(4*w.dim), 1)
	for len(values) > 0 {
		n := min(step*w.dim, len(values))
		w.values = w.values[:0]
		for i, v := range values[:n] {
			level := 1
			if i%w.dim == 0 {
				level = 0
			}
			w.values = append(w.values, parquet.FloatValue(v).Level(level, 1, 1))
		}
		if _, err := columns[1].WriteRowValues(w.values); err != nil {
			return err
		}
		values = values[n:]
	}
	w.inGroup += len(keys)
	if w.inGroup*(8+4*w.dim) >= w.group {
		w.inGroup = 0
		return w.w.Flush()
	}
	return nil
}

func (w *parquetWriter) finish(uint64) error { return w.w.Close() }
