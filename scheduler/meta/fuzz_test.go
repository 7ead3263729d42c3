package meta

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
	"github.com/rowraft/rowraft/wire"
)

// framed sets length and checksum of what has the magic, so that the content is
// tested; other input becomes the content of a frame.
func framed(b []byte, magic string) []byte {
	if !bytes.HasPrefix(b, []byte(magic)) || len(b) < frameBytes {
		b = append(binary.LittleEndian.AppendUint32([]byte(magic), uint32(wire.FirstVersion)),
			append(make([]byte, 8), b...)...)
	}
	b = bytes.Clone(b)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-frameBytes))
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[frameBytes:]))
	return b
}

// formed returns a machine with a cluster, two nodes, a table and a job.
func formed(t tb) *applier {
	a := newApplier(t)
	a.do(cmdInit("c1"))
	a.do(cmdNode("n1", "a", "h:1"))
	a.do(cmdNode("n2", "b", "h:2"))
	a.do(cmdShards(2, "n1", "n2"))
	a.do(cmdTable(metacmd.SGD("t", 4), 9, false))
	id := a.enter(metacmd.EnterJob("w0", 7, metacmd.WithData(1000, 100, 1))).Identity
	a.do(metacmd.TakeSplit(id, 1))
	return a
}

// FuzzEntry: two members answer alike, one that must stop changes nothing, and
// what one accepted survives a snapshot.
func FuzzEntry(f *testing.F) {
	worker := &rowraftv1.JobIdentity{Job: "ctr", Run: metacmd.ID(107), Incarnation: 1} // of formed
	for _, c := range []*rowraftv1.MetaCommand{
		cmdInit("c2"), cmdNode("n3", "c", "h:3"), cmdShards(4, "n1", "n2"),
		cmdTable(metacmd.SGD("u", 1<<20), 10, true), metacmd.IssueIncarnation(), metacmd.DropTable("t", 9),
		metacmd.SetPolicy(metacmd.Nightly("/mnt", 2), 5), metacmd.BeginPolicyRun("nightly", "a", 6),
		metacmd.EndPolicyRun("nightly", "a", "x", true),
		cmdForgetMade("nightly", "a", ""),
		metacmd.Attend(worker, "", 0, 9), metacmd.Attend(worker, "x", 1), cmdDetach(worker),
		metacmd.EnterJob("a", 1, nil), metacmd.EnterJob("a", 1, metacmd.WithData(1000, 100, 1)),
		metacmd.TakeSplit(&rowraftv1.JobIdentity{Job: "ctr", Run: metacmd.ID(107), Incarnation: 1}, 1),
		metacmd.TakeSplit(&rowraftv1.JobIdentity{Job: "ctr", Run: metacmd.ID(107), Incarnation: 1}, 2),
		metacmd.EnterJob("w0", 7, nil),
		metacmd.LeaveJob(&rowraftv1.JobIdentity{Job: "ctr", Run: metacmd.ID(107), Incarnation: 1}, lost,
			&rowraftv1.SplitReached{Acknowledged: 9, Read: 1 << 60}), cmdStopJob(metacmd.ID(107)),
		cmdScore(worker, .5, 3, ""), cmdScore(worker, .5, 3, "/c/1"),
		cmdRaise(2), cmdCreateToken(testToken(nil)), cmdUseToken("n1", 1, 1001), cmdDeleteToken(),
	} {
		entry, err := encodeCommand(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(entry)
		f.Add(entry[frameBytes:])
	}
	f.Add([]byte("RRME\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, entry := range [][]byte{b, framed(b, entryMagic)} {
			one, two := formed(t), formed(t)
			before := stateBytes(t, one.m)
			index := one.index + 1
			var got any
			if n := allocs.Bytes(func() { got = one.m.Apply(index, entry) }); n > 4<<20+64*uint64(len(entry)) {
				t.Errorf("%d bytes made it allocate %d", len(entry), n)
			}
			other := two.m.Apply(index, entry)
			var fatal *raftstore.FatalError
			if err, ok := got.(error); ok {
				err2, ok := other.(error)
				if !ok || rowraft.CodeOf(err) != rowraft.CodeOf(err2) {
					t.Fatalf("one member answers %v, the other %v", got, other)
				}
				if !bytes.Equal(stateBytes(t, one.m), before) {
					t.Errorf("a refused entry changed the state: %v", err)
				}
				if errors.As(err, &fatal) && one.m.AppliedIndex() >= index {
					t.Error("an entry that stops the member counts as applied")
				}
				if rowraft.CodeOf(err) == rowraft.CodeUnknown {
					t.Errorf("%v has no code", err)
				}
			}
			if !bytes.Equal(snapshotBytes(t, one.m), snapshotBytes(t, two.m)) {
				t.Fatal("the members differ")
			}
			three := New(NewView())
			if err := three.Restore(bytes.NewReader(snapshotBytes(t, one.m))); err != nil ||
				!bytes.Equal(snapshotBytes(t, three), snapshotBytes(t, one.m)) {
				t.Errorf("the state does not survive a snapshot: %v", err)
			}
		}
	})
}

// FuzzRestore: the state is the old one, or that of a stream which is written again
// as a stream that reads as the same.
func FuzzRestore(f *testing.F) {
	golden, err := os.ReadFile("testdata/state.snapshot")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(golden[frameBytes:])
	f.Add(golden[:30])
	f.Add(snapshotBytes(f, formed(f).m))
	f.Add([]byte("RRMS\x01\x00\x00\x00\xff\xff\xff\x3f\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, stream := range [][]byte{b, framed(b, snapshotMagic)} {
			m := formed(t).m
			before := snapshotBytes(t, m)
			var err error
			if n := allocs.Bytes(func() { err = m.Restore(bytes.NewReader(stream)) }); n > 4<<20+64*uint64(len(stream)) {
				t.Errorf("%d bytes made it allocate %d", len(stream), n)
			}
			after := snapshotBytes(t, m)
			if err != nil {
				if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew {
					t.Errorf("%v has code %v", err, c)
				}
				if !bytes.Equal(before, after) {
					t.Errorf("a refused stream changed the state: %v", err)
				}
				continue
			}
			again := New(NewView())
			if err := again.Restore(bytes.NewReader(after)); err != nil || !bytes.Equal(snapshotBytes(t, again), after) {
				t.Errorf("the state does not survive a snapshot: %v", err)
			}
		}
	})
}
