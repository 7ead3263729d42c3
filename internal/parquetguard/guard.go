// Package parquetguard checks the lengths in a Parquet file before parquet-go uses them.
//
// The library trusts the lengths that it reads: of the footer, of thrift's lists, of pages. A damaged length could
// exhaust the memory of the process.
package parquetguard

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rowraft/rowraft"
)

func corruptf(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, format, args...)
}

const (
	maxFooterBytes = 16 << 20
	// MaxPageBytes and maxPageValues limit a page in memory. Writers aim at 1 MiB.
	MaxPageBytes  = 256 << 20
	maxPageValues = 64 << 20
	// maxPageHeader limits a page's header, which contains little more than a minimum and a maximum.
	maxPageHeader = 64 << 10
	maxThriftNest = 32
)

// CheckFooter checks both ends of a file. Errors: CodeCorrupt; CodeInvalidArgument for an encrypted file; those of r.
func CheckFooter(r io.ReaderAt, size int64) error {
	var head [4]byte
	var tail [8]byte
	if size < 12 {
		return corruptf("it has %d bytes: too few for Parquet", size)
	}
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return err
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(head[:]) != "PAR1" || string(tail[4:]) != "PAR1" {
		if string(tail[4:]) == "PARE" {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "it is encrypted")
		}
		return corruptf("it does not begin and end as Parquet does; was it written to its end?")
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n > size-12 || n > maxFooterBytes {
		return corruptf("its footer is said to have %d bytes, the file has %d", n, size)
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-8-n); err != nil {
		return err
	}
	if used, err := skipThrift(footer, 0); err != nil || used != len(footer) {
		return corruptf("its footer is damaged")
	}
	return nil
}

// CheckPages checks the headers of a column's pages, but not the pages. Errors: CodeCorrupt; those of r.
func CheckPages(r io.ReaderAt, size int64, m *format.ColumnMetaData) error {
	at, left := m.DataPageOffset, m.TotalCompressedSize
	if d := m.DictionaryPageOffset; d > 0 && d < at {
		at = d
	}
	if at < 4 || left < 0 || at > size || left > size-at {
		return corruptf("a column is said to take %d bytes from byte %d on, the file has %d", left, at, size)
	}
	buf := make([]byte, 512)
	values := int64(0)
	for values < m.NumValues {
		if left <= 0 {
			return corruptf("a column has pages for %d of its %d values", values, m.NumValues)
		}
		var h format.PageHeader
		n, err := readPageHeader(r, at, left, &buf, &h)
		if err != nil {
			return err
		}
		body := int64(h.CompressedPageSize)
		if body < 0 || body > left-int64(n) || body > MaxPageBytes || h.UncompressedPageSize < 0 ||
			h.UncompressedPageSize > MaxPageBytes {
			return corruptf("the page at byte %d has %d bytes, %d uncompressed: want it within its column and at most %d",
				at, body, h.UncompressedPageSize, MaxPageBytes)
		}
		count := pageValues(&h)
		if count < 0 || count > maxPageValues {
			return corruptf("the page at byte %d has %d values: want at most %d", at, count, maxPageValues)
		}
		if h.Type != format.DictionaryPage {
			values += int64(count)
		}
		at += int64(n) + body
		left -= int64(n) + body
	}
	return nil
}

func pageValues(h *format.PageHeader) int32 {
	switch {
	case h.Type == format.DataPage && h.DataPageHeader.Valid:
		return h.DataPageHeader.V.NumValues
	case h.Type == format.DataPageV2 && h.DataPageHeaderV2.Valid:
		return h.DataPageHeaderV2.V.NumValues
	case h.Type == format.DictionaryPage && h.DictionaryPageHeader.Valid:
		return h.DictionaryPageHeader.V.NumValues
	case h.Type == format.IndexPage:
		return 0
	}
	return -1
}

// readPageHeader reads the header at byte at, of at most left bytes, and returns its length.
func readPageHeader(r io.ReaderAt, at, left int64, buf *[]byte, h *format.PageHeader) (int, error) {
	for size := int64(512); ; size *= 8 {
		size = min(size, left, maxPageHeader)
		if int64(len(*buf)) < size {
			*buf = make([]byte, size)
		}
		b := (*buf)[:size]
		if _, err := r.ReadAt(b, at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		n, err := skipThrift(b, 0)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) && size < min(left, maxPageHeader) {
				continue
			}
			return 0, corruptf("the page header at byte %d is damaged", at)
		}
		var p thrift.CompactProtocol
		if err := thrift.Unmarshal(&p, b[:n], h); err != nil {
			return 0, corruptf("the page header at byte %d: %w", at, err)
		}
		return n, nil
	}
}

var errThrift = errors.New("invalid thrift encoding")

// skipThrift returns the length of the struct at the start of b, in thrift's compact protocol. It returns
// io.ErrUnexpectedEOF if more bytes could complete the struct.
func skipThrift(b []byte, depth int) (int, error) {
	if depth > maxThriftNest {
		return 0, errThrift
	}
	at := 0
	for {
		if at >= len(b) {
			return 0, io.ErrUnexpectedEOF
		}
		field := b[at]
		at++
		if field == 0 {
			return at, nil
		}
		if field>>4 == 0 { // the field number follows
			_, n := binary.Uvarint(b[at:])
			if n <= 0 {
				return 0, varintError(n)
			}
			at += n
		}
		n, err := skipValue(b[at:], field&15, depth, false)
		if err != nil {
			return 0, err
		}
		at += n
	}
}

func varintError(n int) error {
	if n == 0 {
		return io.ErrUnexpectedEOF
	}
	return errThrift
}

// skipValue returns the length of a value; a bool takes a byte only in lists.
func skipValue(b []byte, kind byte, depth int, inList bool) (int, error) {
	fixed := func(n int) (int, error) {
		if len(b) < n {
			return 0, io.ErrUnexpectedEOF
		}
		return n, nil
	}
	switch kind {
	case 1, 2: // true, false
		if !inList {
			return 0, nil
		}
		return fixed(1)
	case 3: // byte
		return fixed(1)
	case 4, 5, 6: // i16, i32, i64
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, varintError(n)
		}
		return n, nil
	case 7: // double
		return fixed(8)
	case 8: // bytes
		size, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, varintError(n)
		}
		if size > maxFooterBytes {
			return 0, errThrift
		}
		return fixed(n + int(size))
	case 9, 10: // list, set
		return skipList(b, depth)
	case 12:
		return skipThrift(b, depth+1)
	}
	return 0, errThrift // for example a map: Parquet has none
}

func skipList(b []byte, depth int) (int, error) {
	if len(b) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	size, kind, at := uint64(b[0]>>4), b[0]&15, 1
	if size == 15 {
		var n int
		if size, n = binary.Uvarint(b[1:]); n <= 0 {
			return 0, varintError(n)
		}
		at += n
	}
	if depth > maxThriftNest || size > maxFooterBytes {
		return 0, errThrift
	}
	for range size {
		n, err := skipValue(b[at:], kind, depth+1, true)
		if err != nil {
			return 0, err
		}
		at += n
	}
	return at, nil
}
