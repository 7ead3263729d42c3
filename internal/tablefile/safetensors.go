package tablefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
)

// Names of the tensors unless ReadOptions set others.
const (
	idsTensor     = "ids"
	vectorsTensor = "vectors"
	paddingTensor = "padding" // U8, up to 7 bytes, so that ids are aligned
)

// headerStep divides the length of the header, which is padded with spaces.
const headerStep = 512

// maxSafetensorsHeader is the limit of the format.
const maxSafetensorsHeader = 100_000_000

// tensor is one entry of a header.
type tensor struct {
	DType   string    `json:"dtype"`
	Shape   []uint64  `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// safetensorsWriter writes the vectors to their final position, after space for the header, which is
// written last. The ids follow the vectors. Until Commit they are in a separate file, because their
// position depends on the number of rows, which is not known before the last row.
type safetensorsWriter struct {
	out    *output
	ids    *output
	meta   Meta
	dtype  rowraft.DType
	header int // size of its JSON with padding
	buf    []byte
}

func newSafetensorsWriter(out *output, meta Meta, dtype rowraft.DType) (*safetensorsWriter, error) {
	w := &safetensorsWriter{out: out, meta: meta, dtype: dtype}
	// odd, so that the header includes padding if any number of rows needs it
	longest, err := w.json(1<<62/uint64(meta.Dim*dtype.Size()) | 1)
	if err != nil {
		return nil, err
	}
	w.header = (len(longest) + headerStep - 1) &^ (headerStep - 1)
	if w.ids, err = newOutput(out.disk, out.name+".ids"); err != nil {
		return nil, err
	}
	if _, err := out.Write(make([]byte, 8+w.header)); err != nil {
		return nil, errors.Join(err, w.ids.remove())
	}
	return w, nil
}

// json returns the header of a file with the given number of rows.
func (w *safetensorsWriter) json(rows uint64) ([]byte, error) {
	dtype := "F32"
	if w.dtype == rowraft.BFloat16 {
		dtype = "BF16"
	}
	vectors := rows * uint64(w.meta.Dim*w.dtype.Size())
	ids := vectors + w.padding(rows)
	h := map[string]any{
		"__metadata__": w.meta.strings(),
		vectorsTensor:  tensor{dtype, []uint64{rows, uint64(w.meta.Dim)}, [2]uint64{0, vectors}},
		idsTensor:      tensor{"U64", []uint64{rows}, [2]uint64{ids, ids + 8*rows}},
	}
	if ids > vectors {
		h[paddingTensor] = tensor{"U8", []uint64{ids - vectors}, [2]uint64{vectors, ids}}
	}
	return json.Marshal(h)
}

// padding returns the number of bytes between vectors and ids.
func (w *safetensorsWriter) padding(rows uint64) uint64 {
	return -(rows * uint64(w.meta.Dim*w.dtype.Size())) & 7
}

func (w *safetensorsWriter) append(keys []rowraft.Key, values []float32) error {
	w.buf = appendKeys(w.buf[:0], keys)
	if _, err := w.ids.Write(w.buf); err != nil {
		return err
	}
	w.buf = appendFloats(w.buf[:0], w.dtype, values)
	_, err := w.out.Write(w.buf)
	return err
}

func (w *safetensorsWriter) finish(rows uint64) error {
	if _, err := w.out.Write(make([]byte, w.padding(rows))); err != nil {
		return err
	}
	if err := w.ids.w.Flush(); err != nil {
		return err
	}
	if _, err := io.Copy(w.out, io.NewSectionReader(w.ids.f, 0, int64(8*rows))); err != nil {
		return fmt.Errorf("copy the ids: %w", err)
	}
	text, err := w.json(rows)
	if err != nil {
		return err
	}
	head := le.AppendUint64(nil, uint64(w.header))
	head = append(head, text...)
	for len(head) < 8+w.header {
		head = append(head, ' ')
	}
	return w.out.patch(head)
}

func (w *safetensorsWriter) abort() error { return w.ids.remove() }

// openSafetensors reads the header of a file of size bytes.
func openSafetensors(r io.ReaderAt, size int64, ids, vectors string) (*arrays, error) {
	tensors, meta, data, err := readTensors(r, size)
	if err != nil {
		return nil, err
	}
	i, ok := tensors[ids]
	v, ok2 := tensors[vectors]
	if !ok || !ok2 {
		names := make([]string, 0, len(tensors))
		for name := range tensors {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, invalidf("it has no tensors %q and %q, but %.200q", ids, vectors, fmt.Sprint(names))
	}
	typ := numbersOf(v.DType)
	switch {
	case typ == 0:
		return nil, invalidf("tensor %q is %s: want F32, BF16, F16 or F64", vectors, v.DType)
	case len(v.Shape) != 2:
		return nil, invalidf("tensor %q has shape %v: want rows and numbers", vectors, v.Shape)
	case i.DType != "U64" && i.DType != "I64":
		return nil, invalidf("tensor %q is %s: want U64 or I64", ids, i.DType)
	case len(i.Shape) != 1 || i.Shape[0] != v.Shape[0]:
		return nil, invalidf("tensor %q has shape %v, %q has %v: want an id for each vector", ids, i.Shape, vectors, v.Shape)
	}
	dim, err := checkDim(v.Shape[1])
	if err != nil {
		return nil, err
	}
	return &arrays{
		ids: array{r, data + int64(i.Offsets[0])}, vectors: array{r, data + int64(v.Offsets[0])},
		rows: v.Shape[0], dim: dim, typ: typ,
		meta: metaFrom(func(name string) string { return meta[name] }),
	}, nil
}

// readTensors reads and checks a whole header; data is the position at which the tensors begin.
func readTensors(r io.ReaderAt, size int64) (tensors map[string]tensor, meta map[string]string, data int64, err error) {
	var length [8]byte
	if size < 8 {
		return nil, nil, 0, corruptf("it has %d bytes: want a header", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, nil, 0, err
	}
	n := le.Uint64(length[:])
	if n > maxSafetensorsHeader || int64(n) > size-8 {
		return nil, nil, 0, corruptf("its header is said to have %d bytes, the file has %d", n, size)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, 8); err != nil && err != io.EOF {
		return nil, nil, 0, err
	}
	if tensors, meta, err = parseSafetensorsHeader(text); err != nil {
		return nil, nil, 0, err
	}
	return tensors, meta, 8 + int64(n), checkTensors(tensors, size-8-int64(n))
}

func parseSafetensorsHeader(text []byte) (tensors map[string]tensor, meta map[string]string, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, corruptf("its header is no JSON object")
	}
	tensors = make(map[string]tensor)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, nil, corruptf("its header: %w", err)
		}
		name, _ := t.(string)
		if _, twice := tensors[name]; twice || name == "__metadata__" && meta != nil {
			return nil, nil, corruptf("its header names %.100q twice", name)
		}
		if name == "__metadata__" {
			err = d.Decode(&meta)
		} else {
			var one tensor
			err = d.Decode(&one)
			tensors[name] = one
		}
		if err != nil {
			return nil, nil, corruptf("its header, at %.100q: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, corruptf("its header: %w", err)
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return nil, nil, corruptf("%d bytes follow the JSON of its header", len(rest))
	}
	return tensors, meta, nil
}

// tensorBits is the size of an element in bits, by dtype. A dtype that is not listed has the size that its
// offsets give.
var tensorBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// checkTensors checks that the tensors cover the data of the file, each byte once, as the format requires.
func checkTensors(tensors map[string]tensor, have int64) error {
	names := make([]string, 0, len(tensors))
	for name := range tensors {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := tensors[a].Offsets, tensors[b].Offsets
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(a, b))
	})
	end := uint64(0)
	for _, name := range names {
		t := tensors[name]
		if t.Offsets[0] != end || t.Offsets[1] < end || t.Offsets[1] > uint64(have) {
			return corruptf("tensor %.100q lies at %d to %d: want it to begin at %d and end by %d",
				name, t.Offsets[0], t.Offsets[1], end, have)
		}
		if size := tensorBits[t.DType]; size > 0 {
			want, ok := arrayBytes(1, 1, int(size/8))
			for _, n := range t.Shape {
				if ok {
					want, ok = arrayBytes(uint64(want), n, 1)
				}
			}
			if !ok || uint64(want) != t.Offsets[1]-t.Offsets[0] {
				return corruptf("tensor %.100q has %d bytes, %s of shape %v needs another number",
					name, t.Offsets[1]-t.Offsets[0], t.DType, t.Shape)
			}
		}
		end = t.Offsets[1]
	}
	if end != uint64(have) {
		return corruptf("its tensors take %d bytes, %d follow the header", end, have)
	}
	return nil
}
