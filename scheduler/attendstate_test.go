package scheduler

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func instanceOf(b byte) []byte { return bytes.Repeat([]byte{b}, 16) }

func cmdAttend(job string, rank, trainers uint32, instance byte, checkpoint string, epoch uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Trainer:    &rowraftv1.MetaTrainer{Job: job, Rank: rank, Trainers: trainers, Instance: instanceOf(instance)},
		Checkpoint: checkpoint, TableEpoch: epoch,
	}}}
}

func cmdLeave(job string, rank uint32, instance byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Leave{Leave: &rowraftv1.MetaLeave{Job: job, Rank: rank, Instance: instanceOf(instance)}}}
}

// Who may go on from a checkpoint, step by step; each step is decided alike after a
// snapshot.
func TestATrainerGoesOnFromTheRestoredCheckpointOnce(t *testing.T) {
	m := withShards(t)
	index := rowraft.Index(10)
	step := func(what string, c *rowraftv1.MetaCommand, want rowraft.Code) {
		t.Helper()
		index++
		after := reloaded(t, m)
		for _, one := range []*machine{m, after} {
			if err := applyTo(t, one, index, c); rowraft.CodeOf(err) != want {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		if !bytes.Equal(snapshotBytes(t, m), snapshotBytes(t, after)) {
			t.Errorf("%s: another state after a snapshot", what)
		}
	}
	none := rowraft.CodeUnknown
	step("a trainer begins", cmdAttend("ctr", 0, 2, 1, "", 0), none)
	step("nothing was restored", cmdAttend("ctr", 1, 2, 2, "A", 0), rowraft.CodePrecondition)
	step("it comes back", cmdAttend("ctr", 0, 2, 1, "", 1), none)
	if got := m.atWork(); len(got) != 1 || got[0].GetRank() != 0 {
		t.Errorf("at work: %v", got)
	}
	step("it leaves", cmdLeave("ctr", 0, 1), none)
	if got := m.allTrainers(); len(got) != 0 {
		t.Errorf("nobody will ask for %v", got)
	}
	step("another one begins", cmdAttend("ctr", 1, 2, 3, "", 0), none)

	step("a restore begins", begin(1), none)
	r := restoreOf(1, 2, 2, restoredTable(7, "fresh"))
	r.Source = &rowraftv1.MetaRestored{Id: "A", Destination: "/mnt", Name: "a"}
	step("it is decided", decide(r), none)
	if got := m.allTrainers(); len(got) != 0 {
		t.Errorf("%v have trained since the restore", got)
	}
	step("of the old epoch", cmdAttend("ctr", 1, 2, 3, "", 1), rowraft.CodeSessionExpired)
	step("from another checkpoint", cmdAttend("ctr", 0, 2, 4, "B", 0), rowraft.CodePrecondition)
	step("from this one", cmdAttend("ctr", 0, 2, 4, "A", 0), none)
	step("its call broke", cmdAttend("ctr", 0, 2, 4, "A", 2), none)
	step("another process", cmdAttend("ctr", 0, 2, 5, "A", 0), rowraft.CodePrecondition)
	step("the other trainer", cmdAttend("ctr", 1, 2, 6, "A", 0), none)
	step("one process after another, from where the tables are", cmdAttend("ctr", 0, 2, 7, "", 0), none)
	step("the old one leaves late", cmdLeave("ctr", 0, 4), none)
	if got := m.atWork(); len(got) != 2 {
		t.Errorf("at work: %v, want both", got)
	}
	step("it leaves", cmdLeave("ctr", 0, 7), none)
	if got := m.atWork(); len(got) != 1 || got[0].GetRank() != 1 {
		t.Errorf("at work: %v, want trainer 1", got)
	}
	step("who has left has trained all the same", cmdAttend("ctr", 0, 2, 8, "A", 0), rowraft.CodePrecondition)
	step("somebody who leaves twice", cmdLeave("ctr", 0, 7), none)
	step("somebody nobody knows", cmdLeave("x", 0, 7), none)

	step("the first is closed", end(1, true), none)
	step("another restore begins", begin(2), none)
	step("it is decided, of no checkpoint", decide(restoreOf(2, 3, 2)), none)
	step("the tables come from no checkpoint now", cmdAttend("ctr", 0, 2, 9, "A", 0), rowraft.CodePrecondition)

	for what, c := range map[string]*rowraftv1.MetaCommand{
		"a rank beyond the trainers": cmdAttend("ctr", 2, 2, 1, "", 0),
		"no job":                     cmdAttend("", 0, 2, 1, "", 0),
		"no trainer":                 {Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{}}},
	} {
		step(what, c, rowraft.CodeInvalidArgument)
	}
}

// TestOneOwnerCannotFillTheTrainers: the trainers of one name leave room for those of others, and
// those that leave are forgotten unless they have trained tables that come from a checkpoint.
func TestOneOwnerCannotFillTheTrainers(t *testing.T) {
	m := withShards(t)
	for i, name := range []string{"fresh", "restored"} { // tables 0x50000 and 0x50001
		table := restoredTable(rowraft.TableID(0x50000+i), name)
		m.state.cluster.Tables = append(m.state.cluster.Tables, table)
	}
	attend := func(owner, job string, rank uint32, tables ...uint64) *rowraftv1.MetaCommand {
		c := cmdAttend(job, rank, MaxWorkers, 1, "", 0)
		c.GetAttend().Trainer.Owner, c.GetAttend().Trainer.Tables = owner, tables
		return c
	}
	index := rowraft.Index(10)
	step := func(c *rowraftv1.MetaCommand) error {
		index++
		return applyTo(t, m, index, c)
	}
	for i := range uint32(maxOwnerTrainers) {
		if err := m.state.attend(attend("tom", fmt.Sprintf("job-%d", i/MaxWorkers), i%MaxWorkers, 0x50000).GetAttend()); err != nil {
			t.Fatal(err)
		}
	}
	if err := step(attend("tom", "more", 0)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "16384 trainers of tom") {
		t.Errorf("one more of tom: %v", err)
	}
	if err := step(attend("ann", "hers", 0)); err != nil {
		t.Errorf("one of ann: %v", err)
	}
	if err := step(attend("tom", "job-0", 7, 0x50000)); err != nil {
		t.Errorf("one of tom that comes back: %v", err)
	}
	m.state.restored = []*rowraftv1.MetaRestored{{Id: "A", Tables: []uint64{0x50001}}}
	if err := step(cmdLeave("job-0", 7, 1)); err != nil {
		t.Fatal(err)
	}
	if err := step(attend("tom", "more", 0, 0x50001)); err != nil {
		t.Errorf("one of tom has left, and another comes: %v", err)
	}
	if err := step(cmdLeave("more", 0, 1)); err != nil {
		t.Fatal(err)
	}
	if err := step(attend("tom", "more", 1)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a trainer of restored tables has left, and must be remembered: %v", err)
	}
	after := reloaded(t, m)
	if !bytes.Equal(snapshotBytes(t, m), snapshotBytes(t, after)) {
		t.Error("another state after a snapshot")
	}
}

func TestGoldenBytesOfTrainers(t *testing.T) {
	id := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	trainer := &rowraftv1.MetaTrainer{Job: "ctr", Rank: 1, Trainers: 2, Instance: id, Owner: "tom"}
	for name, c := range map[string]*rowraftv1.MetaCommand{
		"attend": {Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{Trainer: trainer, Checkpoint: "ckpt", TableEpoch: 2}}},
		"leave":  {Command: &rowraftv1.MetaCommand_Leave{Leave: &rowraftv1.MetaLeave{Job: "ctr", Rank: 1, Instance: id}}},
	} {
		want, err := os.ReadFile(filepath.Join("testdata", name+".entry"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := encodeCommand(c); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s encodes to %x (%v), want %x", name, got, err, want)
		}
		var back rowraftv1.MetaCommand
		if err := decodeFrame(bytes.NewReader(want), entryMagic, &back); err != nil || !proto.Equal(&back, c) {
			t.Errorf("%s reads as %v, %v", name, &back, err)
		}
	}
	want, err := os.ReadFile(filepath.Join("testdata", "trainers.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(NewView())
	if err := m.Restore(bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	sources, epoch := m.restored()
	if len(sources) != 1 {
		t.Fatalf("read: %v", sources)
	}
	from := sources[0]
	if all := m.allTrainers(); from.GetId() != "ckpt" || from.GetDestination() != "/mnt" || from.GetName() != "nightly" || epoch != 2 ||
		len(all) != 1 || !all[0].GetLeft() || all[0].GetTrainers() != 2 || !bytes.Equal(all[0].GetInstance(), id) {
		t.Errorf("read: %v in epoch %d, %v", from, epoch, m.allTrainers())
	}
	if got := snapshotBytes(t, m); !bytes.Equal(got, want) {
		t.Errorf("written again: %x, want %x", got, want)
	}
}
