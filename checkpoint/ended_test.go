package checkpoint

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
)

// goldenEnded is what stands in testdata/ended.hex.
func goldenEnded() stream {
	low := rowraft.ClientID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	high := low
	high[0] = 255
	return stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1000, Epoch: 4},
		ended:  Ended{List: []EndedSession{{high, 3, 5}, {low, 9, 7}}},
	}
}

func TestImpossibleEndedSessions(t *testing.T) {
	const chunk = 64 + 16 + 16
	const first = chunk + 16 + 8
	wantImpossible(t, "ended.hex", []changedByte{
		{"another number of them", 56, 3},
		{"one fewer", 56, 1},
		{"none", 56, 0},
		{"too many", 57, 17},
		{"a floor, although none was forgotten", chunk + 16, 1},
		{"incarnation 0", first + 16, 0},
		{"indexes that do not ascend", first + 24, 7},
		{"an index above the applied one", first + 32 + 24, 8},
	})
}

// TestAllEndedSessionsComeBack: as many as a shard remembers, above a floor.
func TestAllEndedSessionsComeBack(t *testing.T) {
	want := goldenEnded()
	want.header.Applied, want.ended = 1<<40, Ended{Floor: 99}
	for i := range rowraft.Index(MaxEnded) {
		want.ended.List = append(want.ended.List, EndedSession{rowraft.ClientID{byte(i)}, 1, 100 + i})
	}
	got, err := read(bytes.NewReader(mustWrite(t, want)))
	if err != nil || !reflect.DeepEqual(got.ended, want.ended) {
		t.Errorf("floor %d, %d sessions, %v", got.ended.Floor, len(got.ended.List), err)
	}
}
