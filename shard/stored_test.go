package shard

import (
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Every field of a session and of a job is in its record, or a restored replica would differ.
func TestRecordsHaveEveryFieldOfTheLiveState(t *testing.T) {
	contributors := wire.RankSet{}
	contributors.Add(3)
	s := &session{
		Client: rowraft.ClientID{1}, Incarnation: 2, Floor: 3, LastUsed: 4, Window: [Window / 64]uint64{5},
		Refused: []refusal{{Seq: 6, Code: rowraft.CodeInvalidArgument}},
	}
	j := &Job{
		ID: rowraft.JobID{1}, Generation: 2, First: 3, Deadline: 4, Quorum: 5,
		Members:    []JobMember{{Member: wire.Member{Rank: 6, Incarnation: 7}, Clock: 8}},
		LastClosed: 9, Closed: []ClosedStep{{Step: 9, Contributors: contributors}},
		Open:      &OpenStep{Step: 10, NextPiece: 11, Contributors: contributors, Table: 12, Key: 13},
		Positions: []rowraft.Position{{ID: 14, Offset: 15}},
	}
	e := &ended{floor: 1, list: []endedSession{{Client: rowraft.ClientID{1}, Incarnation: 2, Index: 3}}}
	var backEnded ended
	backEnded.restore(storedEnded(e))
	backEnded.last = nil // follows from the list
	record, jobRecord := storedSession(s), storedJob(j)
	for _, c := range []struct{ have, back any }{{s, liveSession(&record)}, {j, liveJob(&jobRecord)}, {e, &backEnded}} {
		v := reflect.ValueOf(c.have).Elem()
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; name != "last" && v.Field(i).IsZero() {
				t.Errorf("%s of %T has no value in this test", name, c.have)
			}
		}
		if !reflect.DeepEqual(c.back, c.have) {
			t.Errorf("%+v comes back as %+v", c.have, c.back)
		}
	}
}
