package tablefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// Tensor is a dense tensor of float32 with a name.
type Tensor struct {
	Name   string
	Shape  []int
	Values []float32 // row-major
}

// tensorChunk is how many numbers are converted at a time.
const tensorChunk = 64 << 10

// WriteTensors writes a safetensors file with the tensors in their order. The file gets its name when it is complete.
// meta are its metadata, of any names.
//
// Errors: CodeInvalidArgument if a name repeats, or a shape does not fit its values; CodeAlreadyExists; those of the
// disk.
func WriteTensors(path string, tensors []Tensor, meta map[string]string, o WriteOptions) error {
	text, err := tensorsHeader(tensors, meta)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	w := &Writer{disk: vfs.OrOS(o.Disk), over: o.Overwrite}
	if err = w.open([]string{path}); err == nil {
		w.enc = &tensorsEncoder{w.outputs[0], text, tensors}
		err = w.commit()
	}
	if err = errors.Join(err, w.Abort()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// tensorsHeader returns the JSON of the header, padded so that the tensors are aligned.
func tensorsHeader(tensors []Tensor, meta map[string]string) ([]byte, error) {
	h := make(map[string]any)
	if len(meta) > 0 {
		h["__metadata__"] = meta
	}
	at := uint64(0)
	for _, t := range tensors {
		if _, twice := h[t.Name]; twice || t.Name == "__metadata__" {
			return nil, invalidf("two tensors are called %q", t.Name)
		}
		shape := make([]uint64, len(t.Shape))
		n := 1
		for i, d := range t.Shape {
			shape[i] = uint64(max(d, 0))
			n *= d
		}
		if n != len(t.Values) {
			return nil, invalidf("tensor %s: %d numbers do not have the shape %v", t.Name, len(t.Values), t.Shape)
		}
		end := at + 4*uint64(n)
		h[t.Name] = tensor{"F32", shape, [2]uint64{at, end}}
		at = end
	}
	text, err := json.Marshal(h)
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	return text, err
}

// tensorsEncoder implements encoder for a file without rows.
type tensorsEncoder struct {
	out     *output
	header  []byte
	tensors []Tensor
}

func (e *tensorsEncoder) append([]rowraft.Key, []float32) error { return nil }

func (e *tensorsEncoder) finish(uint64) error {
	if _, err := e.out.Write(append(le.AppendUint64(nil, uint64(len(e.header))), e.header...)); err != nil {
		return err
	}
	var buf []byte
	for _, t := range e.tensors {
		for part := range slices.Chunk(t.Values, tensorChunk) {
			buf = appendFloats(buf[:0], rowraft.Float32, part)
			if _, err := e.out.Write(buf); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadTensors reads all tensors of a safetensors file, in alphabetical order, and its metadata. They must be F32, BF16,
// F16 or F64. disk may be nil: the operating system's.
//
// Errors: CodeNotFound, CodeCorrupt, CodeInvalidArgument; those of the disk.
func ReadTensors(disk vfs.FS, path string) ([]Tensor, map[string]string, error) {
	r := &Reader{path: path}
	tensors, meta, err := r.tensors(vfs.OrOS(disk))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, nil, fmt.Errorf("file %s: %w", path, err)
	}
	return tensors, meta, nil
}

func (r *Reader) tensors(disk vfs.FS) ([]Tensor, map[string]string, error) {
	size, err := r.openFile(disk, r.path)
	if err != nil {
		return nil, nil, err
	}
	found, meta, data, err := readTensors(r.files[0], size)
	if err != nil {
		return nil, nil, err
	}
	var out []Tensor
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t := found[name]
		typ := numbersOf(t.DType)
		if typ == 0 {
			return nil, nil, invalidf("tensor %.100q is %s: want F32, BF16, F16 or F64", name, t.DType)
		}
		one := Tensor{Name: name, Values: make([]float32, (t.Offsets[1]-t.Offsets[0])/uint64(typ.size()))}
		for _, d := range t.Shape { // checkTensors has compared the product with the bytes
			if d > math.MaxInt {
				return nil, nil, corruptf("tensor %.100q has the shape %v", name, t.Shape)
			}
			one.Shape = append(one.Shape, int(d))
		}
		from, at := array{r.files[0], data + int64(t.Offsets[0])}, int64(0)
		for part := range slices.Chunk(one.Values, tensorChunk) {
			b := make([]byte, len(part)*typ.size())
			if err := from.read(b, at); err != nil {
				return nil, nil, fmt.Errorf("tensor %.100q: %w", name, err)
			}
			typ.get(part, b)
			at += int64(len(b))
		}
		out = append(out, one)
	}
	return out, meta, nil
}

// numbersOf returns the number type of a dtype, 0 if it is another one.
func numbersOf(dtype string) number {
	return map[string]number{"F32": f32, "BF16": bf16, "F16": f16, "F64": f64}[dtype]
}
