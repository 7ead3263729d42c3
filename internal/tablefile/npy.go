package tablefile

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/rowraft/rowraft"
)

// npyHeaderBytes is the length of the headers that this package writes, sufficient for the longest shape.
// Data begins at a multiple of 64, as in numpy's own files.
const npyHeaderBytes = 128

const npyMagic = "\x93NUMPY"

// maxNPYHeader is the largest header that numpy reads in a file that is not marked as trusted.
const maxNPYHeader = 10000

// npyHeader returns a header of version 1.0 for an array in C order.
func npyHeader(descr, shape string) []byte {
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape)
	b := append(make([]byte, 0, npyHeaderBytes), npyMagic+"\x01\x00"...)
	b = le.AppendUint16(b, npyHeaderBytes-10)
	b = append(b, dict...)
	for len(b) < npyHeaderBytes-1 {
		b = append(b, ' ')
	}
	return append(b, '\n')
}

// npyWriter writes ids and vectors into two files, and their headers last.
type npyWriter struct {
	ids, vectors *output
	dim          int
	buf          []byte
}

func newNPYWriter(ids, vectors *output, dim int) (*npyWriter, error) {
	var room [npyHeaderBytes]byte
	for _, o := range []*output{ids, vectors} {
		if _, err := o.Write(room[:]); err != nil {
			return nil, err
		}
	}
	return &npyWriter{ids: ids, vectors: vectors, dim: dim}, nil
}

func (w *npyWriter) append(keys []rowraft.Key, values []float32) error {
	w.buf = appendKeys(w.buf[:0], keys)
	if _, err := w.ids.Write(w.buf); err != nil {
		return err
	}
	w.buf = appendFloats(w.buf[:0], rowraft.Float32, values)
	_, err := w.vectors.Write(w.buf)
	return err
}

func (w *npyWriter) finish(rows uint64) error {
	if err := w.ids.patch(npyHeader("<u8", fmt.Sprintf("%d,", rows))); err != nil {
		return err
	}
	return w.vectors.patch(npyHeader("<f4", fmt.Sprintf("%d, %d", rows, w.dim)))
}

// npyArray is the content of the header of a .npy file.
type npyArray struct {
	array
	descr string
	shape []uint64
}

// openNPY reads the header of a file and compares its shape with the size of the file in bytes.
func openNPY(r io.ReaderAt, size int64) (npyArray, error) {
	var a npyArray
	var head [12]byte
	n, err := r.ReadAt(head[:min(size, 12)], 0)
	if n < 10 || string(head[:6]) != npyMagic {
		if err != nil && err != io.EOF {
			return a, err
		}
		return a, corruptf("it does not begin as a .npy file does")
	}
	at, length := int64(10), int64(le.Uint16(head[8:]))
	switch major := head[6]; {
	case major == 2 || major == 3:
		if n < 12 {
			return a, corruptf("it ends within its header")
		}
		at, length = 12, int64(le.Uint32(head[8:]))
	case major != 1:
		return a, rowraft.Errorf(rowraft.CodeVersionTooNew, "the file has .npy version %d: want 1 to 3", major)
	}
	if length > maxNPYHeader || at+length > size {
		return a, corruptf("its header is said to have %d bytes", length)
	}
	dict := make([]byte, length)
	if _, err := r.ReadAt(dict, at); err != nil && err != io.EOF {
		return a, err
	}
	if a.descr, a.shape, err = parseNPYDict(string(dict)); err != nil {
		return a, err
	}
	a.array = array{r, at + length}
	return a, a.checkSize(size - a.at)
}

// checkSize compares the shape with the number of bytes after the header.
func (a *npyArray) checkSize(have int64) error {
	size, err := strconv.Atoi(strings.TrimLeft(a.descr, "<>=|fiubcVSU"))
	if err != nil || size < 1 || size > 1<<16 {
		return invalidf("its numbers are %q: want <u8 or <i8 for ids, <f4, <f2 or <f8 for vectors", a.descr)
	}
	rows, dim := uint64(1), uint64(1)
	if len(a.shape) > 0 {
		rows = a.shape[0]
	}
	if len(a.shape) == 2 {
		dim = a.shape[1]
	}
	if len(a.shape) == 0 || len(a.shape) > 2 {
		return invalidf("it has %d dimensions: want 1 for ids, 2 for vectors", len(a.shape))
	}
	if want, ok := arrayBytes(rows, dim, size); !ok || want != have {
		return corruptf("it has %d bytes of numbers, shape %v of %s needs another number", have, a.shape, a.descr)
	}
	return nil
}

// parseNPYDict parses the Python literal in a header: a dict with a string, a bool and a tuple of integers.
func parseNPYDict(s string) (descr string, shape []uint64, err error) {
	bad := func(what string) (string, []uint64, error) {
		return "", nil, corruptf("its header %s: %.200q", what, s)
	}
	body, ok := strings.CutPrefix(strings.TrimSpace(s), "{")
	body, ok2 := strings.CutSuffix(strings.TrimSpace(body), "}")
	if !ok || !ok2 {
		return bad("is no dict")
	}
	seen := map[string]bool{}
	for body = strings.TrimSpace(body); body != ""; body = strings.TrimSpace(body) {
		key, rest, ok := cutPyString(body)
		rest, ok2 := strings.CutPrefix(strings.TrimSpace(rest), ":")
		if !ok || !ok2 || seen[key] {
			return bad("is no dict of different names")
		}
		seen[key] = true
		rest = strings.TrimSpace(rest)
		switch key {
		case "descr":
			if descr, rest, ok = cutPyString(rest); !ok {
				return "", nil, invalidf("it is an array of records: want plain numbers")
			}
		case "fortran_order":
			if rest, ok = strings.CutPrefix(rest, "False"); !ok {
				return "", nil, invalidf("it is in Fortran order: save numpy.ascontiguousarray of it")
			}
		case "shape":
			tuple, after, ok := strings.Cut(strings.TrimPrefix(rest, "("), ")")
			if !ok || rest[0] != '(' {
				return bad("has no tuple as its shape")
			}
			if shape, ok = parseShape(tuple); !ok {
				return bad("has an impossible shape")
			}
			rest = after
		default:
			return bad("has a name that numpy does not use")
		}
		if body, ok = strings.CutPrefix(strings.TrimSpace(rest), ","); !ok && strings.TrimSpace(rest) != "" {
			return bad("is no dict")
		}
		if !ok {
			body = ""
		}
	}
	if len(seen) != 3 {
		return bad("lacks descr, fortran_order or shape")
	}
	return descr, shape, nil
}

// cutPyString parses a quoted string at the start of s and returns the rest.
func cutPyString(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '\'' && s[0] != '"' {
		return "", s, false
	}
	text, rest, ok = strings.Cut(s[1:], s[:1])
	return text, rest, ok && !strings.Contains(text, `\`)
}

func parseShape(tuple string) (shape []uint64, ok bool) {
	parts := strings.Split(tuple, ",")
	for i, p := range parts {
		p = strings.TrimSpace(p)
		if p == "" && i == len(parts)-1 {
			break
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(p, "L"), 10, 63)
		if err != nil || len(shape) == 32 {
			return nil, false
		}
		shape = append(shape, n)
	}
	return shape, true
}

// openNPYPair opens a table from a file of ids and a file of vectors.
func openNPYPair(ids, vectors io.ReaderAt, idsSize, vectorsSize int64) (*arrays, error) {
	v, err := openNPY(vectors, vectorsSize)
	if err != nil {
		return nil, fmt.Errorf("vectors: %w", err)
	}
	i, err := openNPY(ids, idsSize)
	if err != nil {
		return nil, fmt.Errorf("ids: %w", err)
	}
	typ := map[string]number{"<f4": f32, "<f2": f16, "<f8": f64}[v.descr]
	switch {
	case typ == 0:
		return nil, invalidf("vectors are %q: want <f4, <f2 or <f8", v.descr)
	case len(v.shape) != 2:
		return nil, invalidf("vectors have shape %v: want rows and numbers", v.shape)
	case i.descr != "<u8" && i.descr != "<i8":
		return nil, invalidf("ids are %q: want <u8 or <i8", i.descr)
	case len(i.shape) != 1 || i.shape[0] != v.shape[0]:
		return nil, invalidf("ids have shape %v, vectors %v: want an id for each vector", i.shape, v.shape)
	}
	dim, err := checkDim(v.shape[1])
	if err != nil {
		return nil, err
	}
	return &arrays{ids: i.array, vectors: v.array, rows: v.shape[0], dim: dim, typ: typ}, nil
}
