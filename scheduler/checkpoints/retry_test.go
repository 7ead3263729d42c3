package checkpoints

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// An attempt that lost its leader may have left files, may have made the checkpoint, and may make it late. The next
// attempt makes it, or finds it made: there is one checkpoint, and no file of another.
func TestTheNextAttemptOfACheckpoint(t *testing.T) {
	s, _, _ := newSolo(t, 1, nil)
	operation, ctx := uuid.New(), t.Context()
	for _, when := range []string{"never", "before", "late"} {
		t.Run(when, func(t *testing.T) {
			d, err := depot.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			attempt := func(n uint32, of uuid.UUID) *creation {
				op := &creation{c: s, depot: d, req: &rowraftv1.CreateCheckpointRequest{Name: "a", Operation: of[:],
					Attempt: n}}
				if err := op.chooseID(); err != nil {
					t.Fatal(err)
				}
				return op
			}
			write := func(op *creation) (*checkpoint.Manifest, []byte) {
				content := fmt.Sprint("of ", op.id)
				f := checkpoint.File{Name: fmt.Sprintf("shard-0000-%x01020304.rows", op.tag()), Bytes: int64(len(content)),
					SHA256: sha256.Sum256([]byte(content))}
				sums := f
				sums.Name = fmt.Sprintf("shard-0000-%x01020304.sums", op.tag())
				file := checkpoint.ShardFile{Applied: 7, Stream: f, Sums: sums}
				for slot := range rowraft.DefaultSlots {
					file.Slots = append(file.Slots, rowraft.Slot(slot))
				}
				m := &checkpoint.Manifest{ID: op.id.String(), Created: time.Unix(1, 0), Cluster: "c", Binary: "b", Epoch: 1,
					Map: 1, HashVers: clustermap.HashVersion, Slots: rowraft.DefaultSlots,
					Shards: []checkpoint.ShardFile{file}}
				raw, err := m.Encode()
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range m.Files() {
					if err := d.Put(ctx, "a/"+f.Name, []byte(content)); err != nil {
						t.Fatal(err)
					}
				}
				return m, raw
			}
			first, second := attempt(0, operation), attempt(1, operation)
			if _, err := first.open(ctx); err != nil {
				t.Fatal(err)
			}
			m, raw := write(first)
			put := func() {
				if _, err := first.putManifest(ctx, m, raw); err != nil {
					t.Fatal(err)
				}
			}
			if when == "before" {
				put()
			}
			made, err := second.open(ctx)
			if err != nil || (made != nil) != (when == "before") {
				t.Fatalf("the second attempt finds %v, %v", made, err)
			}
			want := first.id
			if when != "before" {
				m2, raw2 := write(second)
				if when == "late" {
					put()
				} else {
					want = second.id
				}
				if made, err = second.putManifest(ctx, m2, raw2); err != nil {
					t.Fatal(err)
				}
				if when == "late" {
					if err := second.cleanUp(); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, err = attempt(0, uuid.New()).open(ctx)
			testutil.WantCodeOf(t, "another call for the same name", err, rowraft.CodeAlreadyExists)
			there, err := d.List(ctx, "a")
			if err != nil || made.ID != want.String() || len(there) != 3 {
				t.Errorf("made %s, want %s; there are %v, %v", made.ID, want, there, err)
			}
		})
	}
}

func TestAnAttemptIsChecked(t *testing.T) {
	id := bytes.Repeat([]byte{7}, 16)
	for _, req := range []*rowraftv1.CreateCheckpointRequest{{Name: "a", Operation: id[:15]}, {Operation: id},
		{Name: "a", Operation: id, Attempt: maxAttempts}} {
		op := &creation{req: req}
		testutil.WantCodeOf(t, fmt.Sprint(req), op.chooseID(), rowraft.CodeInvalidArgument)
	}
}

// TestWhichRestoreWasDecided since the plan of a call: none, that of an earlier attempt, or another one.
func TestWhichRestoreWasDecided(t *testing.T) {
	emb := metacmd.Table(1, "emb")
	manifest := &checkpoint.Manifest{ID: "id-a", Tables: []checkpoint.TableSum{{Schema: emb}}}
	for _, tc := range []struct {
		name   string
		tables []string // the call names them
		from   string   // the checkpoint of the decided restore; "": none is decided
		alone  bool     // the decided one is of emb alone
		mine   bool
		fails  bool
	}{
		{name: "none"},
		{name: "none, of one table", tables: []string{"emb"}},
		{name: "this one", from: "id-a", mine: true},
		{name: "this one, of one table", tables: []string{"emb"}, from: "id-a", alone: true, mine: true},
		{name: "another checkpoint", from: "id-b", fails: true},
		{name: "another checkpoint, of the same table", tables: []string{"emb"}, from: "id-b", alone: true, fails: true},
		{name: "the same checkpoint, of one table", from: "id-a", alone: true, fails: true},
		{name: "the same checkpoint, of all tables", tables: []string{"emb"}, from: "id-a", fails: true},
	} {
		s, l, _ := newSolo(t, 1, nil)
		op := &restoration{c: s, manifest: manifest,
			req: &rowraftv1.RestoreCheckpointRequest{Name: "a", Tables: tc.tables, After: s.machine.Decided()}}
		if tc.from != "" {
			restored, epoch := emb, uint64(2)
			if tc.alone {
				restored.ID, epoch = emb.ID.RestoredBy(1), 1
			}
			r := metacmd.Restore(3, epoch, 1, restored)
			r.Source = &rowraftv1.MetaRestored{Id: tc.from}
			for _, c := range []*rowraftv1.MetaCommand{metacmd.BeginRestore(3), metacmd.DecideRestore(r)} {
				if err := l.Propose(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
		if mine, err := op.decidedEarlier(); mine != tc.mine || (err != nil) != tc.fails {
			t.Errorf("%s: mine %v, %v", tc.name, mine, err)
		}
	}
}

// restoreReplies is the call of a restore that keeps its last reply.
type restoreReplies struct {
	openStream
	last *rowraftv1.RestoreCheckpointReply
}

func (s *restoreReplies) Send(r *rowraftv1.RestoreCheckpointReply) error {
	s.last = r
	return nil
}

// TestTheEndOfAnEarlierRestore: a leader waits for the end of a decided restore only while it leads, and the reply has
// the bytes that the earlier attempt read.
func TestTheEndOfAnEarlierRestore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, l, _ := newSolo(t, 1, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, &partsServer{}) })
	emb := metacmd.Table(1, "emb")
	manifest := &checkpoint.Manifest{ID: "id-a", Slots: rowraft.DefaultSlots,
		Tables: []checkpoint.TableSum{{Schema: emb, Rows: 9}},
		Blobs:  []checkpoint.Blob{{Name: "b", File: checkpoint.File{Bytes: 77}}}}
	stream := &restoreReplies{openStream: openStream{ctx: ctx}}
	op := &restoration{c: s, manifest: manifest, chain: checkpoint.Chain{{Manifest: manifest}}, stream: stream,
		req: &rowraftv1.RestoreCheckpointRequest{Name: "a", After: s.machine.Decided()}}
	var err error
	if op.term, err = l.Leading(); err != nil {
		t.Fatal(err)
	}
	r := metacmd.Restore(3, 2, 1, emb)
	r.Source = &rowraftv1.MetaRestored{Id: "id-a"}
	for _, c := range []*rowraftv1.MetaCommand{metacmd.BeginRestore(3), metacmd.DecideRestore(r)} {
		if err := l.Propose(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if earlier, err := op.decidedEarlier(); !earlier || err != nil {
		t.Fatalf("decided earlier: %v, %v", earlier, err)
	}
	l.Elect(false)
	testutil.WantCodeOf(t, "while another member leads", op.awaitEarlier(ctx, nil), rowraft.CodeLeadershipLost)
	l.Elect(true)
	if op.term, err = l.Leading(); err != nil {
		t.Fatal(err)
	}
	if err := l.Propose(ctx, metacmd.EndRestore(3, true)); err != nil {
		t.Fatal(err)
	}
	if err := op.awaitEarlier(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if d := stream.last; d.GetPhase() != "done" || d.GetBytes() != 77 || d.GetTables()[0].GetRestored() != 9 {
		t.Errorf("the reply is %v", d)
	}
}
