package parquetguard

import (
	"bytes"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rowraft/rowraft"
)

// TestPageHeadersAreNotBelieved: sizes and counts for which the library would allocate memory are refused
// before it reads them.
func TestPageHeadersAreNotBelieved(t *testing.T) {
	for _, tc := range []struct {
		name               string
		size, uncompressed int32
		values             int32
		page               format.PageType
		column             format.ColumnMetaData
		says               string
	}{
		{"good", 10, 10, 5, format.DataPage, format.ColumnMetaData{NumValues: 5}, ""},
		{"of more values than any page has",
			10, 10, maxPageValues + 1, format.DataPage, format.ColumnMetaData{NumValues: 5}, "67108865 values"},
		{"of fewer than none", 10, 10, -1, format.DataPage, format.ColumnMetaData{NumValues: 5}, "-1 values"},
		{"longer than its column", 1000, 10, 5, format.DataPage, format.ColumnMetaData{NumValues: 5}, "1000 bytes"},
		{"of less than nothing", -1, 10, 5, format.DataPage, format.ColumnMetaData{NumValues: 5}, "-1 bytes"},
		{"that grows without bound",
			10, MaxPageBytes + 1, 5, format.DataPage, format.ColumnMetaData{NumValues: 5}, "268435457 uncompressed"},
		{"with fewer values than the column",
			10, 10, 5, format.DataPage, format.ColumnMetaData{NumValues: 6}, "pages for 5 of its 6 values"},
		{"of another type than its header",
			10, 10, 5, format.DictionaryPage, format.ColumnMetaData{NumValues: 5}, "-1 values"},
		{"beyond the file", 10, 10, 5, format.DataPage, format.ColumnMetaData{NumValues: 5, DataPageOffset: 1 << 40},
			"is said to take"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := format.PageHeader{Type: tc.page, CompressedPageSize: tc.size, UncompressedPageSize: tc.uncompressed}
			h.DataPageHeader.Valid, h.DataPageHeader.V.NumValues = true, tc.values
			header, err := thrift.Marshal(new(thrift.CompactProtocol), &h)
			if err != nil {
				t.Fatal(err)
			}
			file := append(append([]byte("PAR1"), header...), make([]byte, 10)...)
			m := tc.column
			m.TotalCompressedSize = int64(len(file) - 4)
			if m.DataPageOffset == 0 {
				m.DataPageOffset = 4
			}
			err = CheckPages(bytes.NewReader(file), int64(len(file)), &m)
			if (tc.says == "") != (err == nil) || err != nil &&
				(rowraft.CodeOf(err) != rowraft.CodeCorrupt || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

// TestThriftIsNotBelieved refuses a list that is longer than its bytes allow, and endless nested structs.
func TestThriftIsNotBelieved(t *testing.T) {
	for name, b := range map[string][]byte{
		"a long list of structs": {0x19, 0xfc, 0xff, 0xff, 0xff, 0x07, 0, 0},
		"a long list of bools":   {0x19, 0xf1, 0xff, 0xff, 0xff, 0x07, 0, 0},
		"long bytes":             {0x18, 0xff, 0xff, 0xff, 0xff, 0x07, 0},
		"deep structs":           bytes.Repeat([]byte{0x1c}, 1000),
		"deep lists":             append([]byte{0x19}, bytes.Repeat([]byte{0x19}, 1000)...),
		"a map":                  {0x1b, 0x01, 0x55, 1, 1, 0},
		"no end":                 {0x15, 0x02},
	} {
		if n, err := skipThrift(b, 0); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	if n, err := skipThrift([]byte{0x15, 0x02, 0x19, 0x25, 0x02, 0x04, 0x18, 0x01, 'x', 0, 9}, 0); err != nil || n != 10 {
		t.Errorf("an i32, a list of two and a string: %d bytes, %v", n, err)
	}
}
