package raftlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/rowraft/rowraft/raftstore/entry"
)

// window reads a file through a buffer.
type window struct {
	file io.ReaderAt
	buf  []byte
	from int64
}

const (
	windowBytes = 64 << 10
	windowJump  = 4 << 10 // is read after a jump, which is likely not the last one
)

// bytes returns n ≤ windowBytes bytes at offset. They are valid until the next call. The error is io.ErrUnexpectedEOF
// if the file ends before offset+n.
func (w *window) bytes(offset int64, n int) ([]byte, error) {
	if offset < w.from || offset+int64(n) > w.from+int64(len(w.buf)) {
		if w.buf == nil {
			w.buf = make([]byte, windowBytes)
		}
		size := windowBytes
		if offset > w.from+int64(len(w.buf)) { // over an entry, to the next head
			size = max(n, windowJump)
		}
		got, err := w.file.ReadAt(w.buf[:size], offset)
		if err != nil && !errors.Is(err, io.EOF) {
			w.buf = w.buf[:0]
			return nil, err
		}
		w.from, w.buf = offset, w.buf[:got]
	}
	at := int(offset - w.from)
	if at+n > len(w.buf) {
		return nil, io.ErrUnexpectedEOF
	}
	return w.buf[at : at+n], nil
}

// batch returns the head of the batch at offset. ok is false if there is no complete batch; batch does not check the
// data of the entries.
func (w *window) batch(offset int64, salt uint64) (head batchHead, ok bool, err error) {
	b, err := w.bytes(offset, batchHeadBytes)
	if err == nil {
		if head, ok = parseBatchHead(b); ok {
			ok, err = w.crcFits(offset, head, batchCRC(salt, b))
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return head, false, nil
	}
	return head, ok, err
}

// crcFits adds the heads of the sections and entries to sum, and compares the result with the CRC in head.
func (w *window) crcFits(offset int64, head batchHead, sum uint32) (bool, error) {
	add := func(_ int64, b []byte) error {
		sum = crc32.Update(sum, castagnoli, b)
		return nil
	}
	fits, err := w.sections(offset, head, func(s section, body int64) (bool, error) {
		b, err := w.bytes(body-sectionHeadBytes, sectionHeadBytes)
		if err != nil {
			return false, err
		}
		sum = crc32.Update(sum, castagnoli, b)
		if !s.hasEntries() {
			return true, w.each(body, body+int64(s.length), add)
		}
		return w.entries(s, body, func(at int64, _ entry.Head) (bool, error) {
			b, err := w.bytes(at, entry.HeadBytes)
			sum = crc32.Update(sum, castagnoli, b)
			return true, err
		})
	})
	return fits && sum == head.crc, err
}

// sections calls do with each section of a batch and the offset of its body, until do returns false. It returns false
// if do does, or if the sections do not fill the batch.
func (w *window) sections(offset int64, head batchHead, do func(s section, body int64) (bool, error)) (bool, error) {
	at, end := offset+batchHeadBytes, offset+batchHeadBytes+int64(head.length)
	for range head.sections {
		if at+sectionHeadBytes > end {
			return false, nil
		}
		b, err := w.bytes(at, sectionHeadBytes)
		if err != nil {
			return false, err
		}
		s, ok := parseSection(b)
		at += sectionHeadBytes
		if !ok || at+int64(s.length) > end {
			return false, nil
		}
		if ok, err := do(s, at); !ok || err != nil {
			return false, err
		}
		at += int64(s.length)
	}
	return at == end, nil
}

// entries calls do with each entry of a section and the offset of its head, until do returns false. It returns false if
// do does, or if the entries do not fill the section.
func (w *window) entries(s section, body int64, do func(at int64, h entry.Head) (bool, error)) (bool, error) {
	at, left := body, uint64(s.length)
	for range s.count {
		if left < entry.HeadBytes {
			return false, nil
		}
		b, err := w.bytes(at, entry.HeadBytes)
		if err != nil {
			return false, err
		}
		h := entry.ParseHead(b)
		size := entryBytes(h)
		if size > left {
			return false, nil
		}
		if ok, err := do(at, h); !ok || err != nil {
			return false, err
		}
		left -= size
		at += int64(size)
	}
	return left == 0, nil
}

// laterBatch searches from offset on for a complete batch with a number of at least from. It returns its offset and
// number, or number 0. Batches from an earlier use of the file do not match, because they have another salt.
func (w *window) laterBatch(offset int64, salt, from uint64) (at int64, number uint64, err error) {
	for ; ; offset += 8 {
		b, err := w.bytes(offset, batchHeadBytes)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, 0, nil
		}
		if err != nil {
			return 0, 0, err
		}
		h, ok := parseBatchHead(b)
		if !ok || h.number < from {
			continue
		}
		if _, whole, err := w.batch(offset, salt); err != nil || whole {
			return offset, h.number, err
		}
	}
}

// wholeBatch reports whether the batch is there up to its last byte and the data of all entries match their seals.
func (w *window) wholeBatch(offset int64, head batchHead) (bool, error) {
	whole, err := w.sections(offset, head, func(s section, body int64) (bool, error) {
		if !s.hasEntries() {
			return true, nil
		}
		return w.entries(s, body, func(at int64, h entry.Head) (bool, error) {
			data, sum := at+entry.HeadBytes, uint32(0)
			err := w.each(data, data+int64(h.Length), func(_ int64, b []byte) error {
				sum = crc32.Update(sum, castagnoli, b)
				return nil
			})
			return sum == binary.LittleEndian.Uint32(h.Seal[:]), err
		})
	})
	if err == nil { // the padding of the last entry
		_, err = w.bytes(offset+batchHeadBytes+int64(head.length)-8, 8)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return whole, err
}

// rewrite writes the bytes from … end again.
func (w *window) rewrite(to io.WriterAt, from, end int64) error {
	return w.each(from, end, func(at int64, b []byte) error {
		_, err := to.WriteAt(b, at)
		return err
	})
}

// each calls do for the bytes from … end, in chunks of at most windowBytes.
func (w *window) each(from, end int64, do func(at int64, b []byte) error) error {
	for from < end {
		b, err := w.bytes(from, int(min(end-from, windowBytes)))
		if err != nil {
			return err
		}
		if err := do(from, b); err != nil {
			return err
		}
		from += int64(len(b))
	}
	return nil
}

func readFull(f io.ReaderAt, b []byte, offset int64) error {
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	return err
}
