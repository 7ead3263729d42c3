package meta

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func cmdDetach(id *rowraftv1.JobIdentity) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Detach{Detach: &rowraftv1.MetaDetach{Identity: id}}}
}

// expected returns the trainers for which a checkpoint of no job waits if none of them is connected.
func (m *Machine) expected() (out []TrainerID) {
	for _, r := range m.Runs() {
		for _, rank := range ExpectedRanks(r, false, false) {
			out = append(out, TrainerID{r.GetJob(), rank})
		}
	}
	return out
}

// remembered returns the trainers of the restored tables.
func (m *Machine) remembered() (out []TrainerID) {
	sources, _ := m.Sources()
	for _, from := range sources {
		for _, t := range from.GetTrained() {
			out = append(out, TrainerID{t.GetJob(), t.GetRank()})
		}
	}
	return out
}

// history applies commands to a machine, and each one also to a copy that was reloaded from a snapshot.
type history struct {
	t     *testing.T
	m     *Machine
	index rowraft.Index
}

func (h *history) step(what string, c *rowraftv1.MetaCommand, want rowraft.Code) (result any) {
	h.t.Helper()
	h.index++
	after := reloaded(h.t, h.m)
	for _, one := range []*Machine{after, h.m} {
		entry, err := encodeCommand(c)
		if err != nil {
			h.t.Fatal(err)
		}
		result = one.Apply(h.index, entry)
		if err, _ := result.(error); rowraft.CodeOf(err) != want {
			h.t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	if !bytes.Equal(snapshotBytes(h.t, h.m), snapshotBytes(h.t, after)) {
		h.t.Errorf("%s: another state after a snapshot", what)
	}
	return result
}

// enter returns the identity of a process that enters a job of two workers.
func (h *history) enter(job string, rank uint32, process byte) *rowraftv1.JobIdentity {
	h.t.Helper()
	c := metacmd.EnterJob(fmt.Sprint("w", rank), process,
		func(q *rowraftv1.EnterRequest) { q.Job, q.WantRank = job, rank+1 })
	return h.step("it enters", c, rowraft.CodeUnknown).(*EnterResult).Identity
}

// TestATrainerGoesOnFromTheRestoredCheckpointOnce: which trainers may resume from a checkpoint, step by step.
func TestATrainerGoesOnFromTheRestoredCheckpointOnce(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	wantTrainers := func(what string, got []TrainerID, want ...TrainerID) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	zero, one := TrainerID{"ctr", 0}, TrainerID{"ctr", 1}
	none := rowraft.CodeUnknown
	first, second := h.enter("ctr", 0, 1), h.enter("ctr", 1, 2)
	wantTrainers("before they attend", h.m.expected())
	h.step("it attends", metacmd.Attend(first, "", 0), none)
	h.step("nothing was restored", metacmd.Attend(second, "A", 0), rowraft.CodePrecondition)
	h.step("it calls again", metacmd.Attend(first, "", 1), none)
	wantTrainers("one attends", h.m.expected(), zero)
	h.step("it detaches", cmdDetach(first), none)
	wantTrainers("it has detached", h.m.expected())
	wantTrainers("no table comes from a checkpoint", h.m.remembered())
	h.step("the other one attends", metacmd.Attend(second, "", 0), none)

	h.step("a restore begins", metacmd.BeginRestore(1), none)
	r := metacmd.Restore(1, 2, 2, metacmd.Table(7, "fresh"))
	r.Source = &rowraftv1.MetaRestored{Id: "A", Destination: "/mnt", Name: "a"}
	h.step("it is decided", metacmd.DecideRestore(r), none)
	wantTrainers("a restore detaches all", h.m.expected())
	h.step("of the old epoch", metacmd.Attend(second, "", 1), rowraft.CodeSessionExpired)
	h.step("from another checkpoint", metacmd.Attend(first, "B", 0), rowraft.CodePrecondition)
	h.step("from this one", metacmd.Attend(first, "A", 0), none)
	h.step("its call broke", metacmd.Attend(first, "A", 2), none)
	next := h.enter("ctr", 0, 3)
	wantTrainers("its state is needed until its successor attends", h.m.expected(), zero)
	h.step("another process", metacmd.Attend(next, "A", 0), rowraft.CodePrecondition)
	h.step("the process before", metacmd.Attend(first, "A", 0), rowraft.CodeSessionExpired)
	h.step("the other trainer", metacmd.Attend(second, "A", 0), none)
	h.step("another process, from where the tables are", metacmd.Attend(next, "", 0), none)
	h.step("the process before detaches late", cmdDetach(first), none)
	wantTrainers("both attend", h.m.expected(), zero, one)
	h.step("it detaches", cmdDetach(next), none)
	wantTrainers("one has detached", h.m.expected(), one)
	h.step("it attends again: its call broke before it knew", metacmd.Attend(next, "A", 2), none)
	h.step("it detaches twice", cmdDetach(next), none)
	h.step("it detaches twice", cmdDetach(next), none)
	h.step("a member of no job detaches", cmdDetach(&rowraftv1.JobIdentity{Job: "x", Run: metacmd.ID(1), Incarnation: 7}),
		none)
	wantTrainers("both have trained", h.m.remembered(), zero, one)

	// The run is done, and another run of the job does not make its trainers forgotten.
	h.step("it ends", metacmd.LeaveJob(next, ended), none)
	h.step("it ends", metacmd.LeaveJob(second, ended), none)
	wantTrainers("the run is idle", h.m.expected())
	later := h.enter("ctr", 0, 4)
	if bytes.Equal(later.GetRun(), next.GetRun()) {
		t.Error("the run that was done goes on")
	}
	h.step("a trainer of another run", metacmd.Attend(later, "A", 0), rowraft.CodePrecondition)
	h.step("the job is stopped before a member attends", metacmd.LeaveJob(later, stopped), none)
	h.step("the run before it is deleted", cmdForgetJob("ctr", next.GetRun(), 0, true), none)
	later = h.enter("ctr", 0, 5)
	h.step("a trainer of a deleted job", metacmd.Attend(later, "A", 0), rowraft.CodePrecondition)

	h.step("the first is closed", metacmd.EndRestore(1, true), none)
	h.step("another restore begins", metacmd.BeginRestore(2), none)
	h.step("it is decided, of no checkpoint", metacmd.DecideRestore(metacmd.Restore(2, 3, 2)), none)
	h.step("the tables come from no checkpoint now", metacmd.Attend(later, "A", 0), rowraft.CodePrecondition)
	wantTrainers("no table comes from a checkpoint", h.m.remembered())

	h.step("a member of no job", metacmd.Attend(nil, "", 0), rowraft.CodeSessionExpired)
	h.step("too many tables", metacmd.Attend(later, "", 0, make([]uint64, MaxTables+1)...), rowraft.CodeInvalidArgument)
}

// TestWhoseStateACheckpointNeeds: a checkpoint waits for members that attend, and for none of a run in which nothing
// happens any more.
func TestWhoseStateACheckpointNeeds(t *testing.T) {
	const training = rowraftv1.MemberState_MEMBER_STATE_TRAINING
	type member struct {
		rank     uint32
		state    rowraftv1.MemberState
		attached bool
	}
	for _, tc := range []struct {
		name      string
		members   []member
		divided   bool
		needed    bool // the checkpoint must have the job
		connected bool // at least one of its trainers
		want      []uint32
	}{
		{name: "both train", members: []member{{0, training, true}, {1, training, true}}, want: []uint32{0, 1}},
		{name: "one has not attended yet", members: []member{{0, training, true}, {1, training, false}}, want: []uint32{0}},
		{name: "one has ended, its call broke", members: []member{{0, ended, true}, {1, training, true}},
			want: []uint32{0, 1}},
		{name: "one was stopped and has detached", members: []member{{0, stopped, false}, {1, training, true}},
			want: []uint32{1}},
		{name: "one was lost with its share", members: []member{{0, lost, true}, {1, training, true}}, want: []uint32{0, 1}},
		{name: "all have ended, one is connected", members: []member{{0, ended, true}, {1, ended, true}}, connected: true,
			want: []uint32{0, 1}},
		{name: "all were lost", members: []member{{0, lost, true}, {1, lost, true}}},
		{name: "one has ended and died, one was lost", members: []member{{0, ended, true}, {1, lost, true}}},
		{name: "needed, and no trainer is connected", members: []member{{0, lost, true}}, needed: true, want: []uint32{0, 1}},
		{name: "needed, one has detached", members: []member{{0, stopped, false}, {1, training, true}}, needed: true,
			connected: true, want: []uint32{0, 1}},
		{name: "needed, one has left, others read its parts", members: []member{{0, stopped, false}, {1, training, true}},
			divided: true, needed: true, connected: true, want: []uint32{1}},
		{name: "needed, one has left and still attends", members: []member{{0, stopped, true}, {1, training, true}},
			divided: true, needed: true, connected: true, want: []uint32{1}},
		{name: "one has left and still attends", members: []member{{0, stopped, true}, {1, training, true}}, divided: true,
			connected: true, want: []uint32{1}},
		{name: "needed, all were stopped", members: []member{{0, stopped, false}, {1, stopped, true}}, divided: true,
			needed: true, connected: true, want: []uint32{0, 1}},
		{name: "needed, one was lost, others read its parts", members: []member{{0, lost, false}, {1, training, true}},
			divided: true, needed: true, connected: true, want: []uint32{1}},
	} {
		r := &rowraftv1.MetaRun{Job: "ctr", Workers: 2, Data: &rowraftv1.JobData{}}
		if tc.divided {
			r.Data.Examples = 100
		}
		for _, m := range tc.members {
			one := &rowraftv1.RunMember{Rank: m.rank, State: m.state, Incarnation: 1}
			if m.attached {
				one.Attending = 1
			}
			r.Members = append(r.Members, one)
		}
		if got := ExpectedRanks(r, tc.needed, tc.connected); !slices.Equal(got, tc.want) {
			t.Errorf("%s: ranks %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestOneOwnerCannotFillTheTrainers: what is remembered of the trainers of one owner leaves room for those of others,
// and only trainers of tables that come from a checkpoint are remembered.
func TestOneOwnerCannotFillTheTrainers(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	for i, name := range []string{"fresh", "restored"} { // tables 0x50000 and 0x50001
		h.m.state.catalog.tables = append(h.m.state.catalog.tables, metacmd.Table(rowraft.TableID(0x50000+i), name))
	}
	old := &rowraftv1.MetaRestored{Id: "A", Tables: []uint64{0x50001}}
	for i := range uint32(maxOwnerTrained) {
		old.Trained = append(old.Trained, &rowraftv1.MetaTrained{Job: fmt.Sprintf("job-%d", i/MaxWorkers),
			Rank: i % MaxWorkers, Incarnation: 1, Owner: "tom"})
	}
	h.m.state.catalog.restored = []*rowraftv1.MetaRestored{old}
	enter := func(owner, job string, process byte) *rowraftv1.JobIdentity {
		c := enterAs(owner, job)
		c.GetEnterJob().Request.Instance = metacmd.ID(process)
		return h.step("it enters", c, rowraft.CodeUnknown).(*EnterResult).Identity
	}
	more := enter("tom", "more", 2)
	err, _ := h.step("one more of tom", metacmd.Attend(more, "", 0, 0x50001), rowraft.CodeInvalidArgument).(error)
	if !strings.Contains(fmt.Sprint(err), "16384 trainers of restored tables of tom") {
		t.Errorf("one more of tom: %v", err)
	}
	h.step("one more of tom, of other tables", metacmd.Attend(more, "", 0, 0x50000), rowraft.CodeUnknown)
	h.step("one of tom that is remembered", metacmd.Attend(enter("tom", "job-0", 3), "", 0, 0x50001), rowraft.CodeUnknown)
	h.step("one of ann", metacmd.Attend(enter("ann", "hers", 4), "", 0, 0x50001), rowraft.CodeUnknown)
	if n := len(h.m.remembered()); n != maxOwnerTrained+1 {
		t.Errorf("%d trainers are remembered, want those of tom and one of ann", n)
	}
	for len(h.m.state.catalog.restored[0].Trained) < maxTrained {
		i := len(h.m.state.catalog.restored[0].Trained)
		h.m.state.catalog.restored[0].Trained = append(h.m.state.catalog.restored[0].Trained,
			&rowraftv1.MetaTrained{Job: fmt.Sprintf("x-%06d", i), Incarnation: 1})
	}
	h.step("one more of any owner", metacmd.Attend(enter("bob", "his", 5), "", 0, 0x50001), rowraft.CodeInvalidArgument)
}

func TestGoldenBytesOfTrainers(t *testing.T) {
	run := make([]byte, 16)
	for i := range run {
		run[i] = byte(17 + i)
	}
	id := &rowraftv1.JobIdentity{Job: "ctr", Run: run, Rank: 1, Incarnation: 6}
	for name, c := range map[string]*rowraftv1.MetaCommand{
		"attend": metacmd.Attend(id, "ckpt", 2, 7, 9),
		"detach": cmdDetach(id),
	} {
		goldenCommand(t, name, c)
	}
	m := goldenMachine(t, "trainers")
	sources, epoch := m.Sources()
	if len(sources) != 1 {
		t.Fatalf("read: %v", sources)
	}
	from := sources[0]
	trained := &rowraftv1.MetaTrained{Job: "ctr", Rank: 1, Incarnation: 6, Owner: "tom"}
	if from.GetId() != "ckpt" || from.GetDestination() != "/mnt" || from.GetName() != "nightly" || epoch != 2 ||
		len(from.GetTrained()) != 1 || !proto.Equal(from.GetTrained()[0], trained) {
		t.Errorf("read: %v in epoch %d", from, epoch)
	}
	if got := m.expected(); !slices.Equal(got, []TrainerID{{"ctr", 1}}) ||
		!slices.Equal(m.RunOf("ctr").GetTables(), []uint64{7, 9}) {
		t.Errorf("read: %v attend, %v", got, m.RunOf("ctr"))
	}
	if all := m.state.registry.trainersOfAll(); len(all) != 1 || !proto.Equal(all[0], trained) {
		t.Errorf("read: %v may train any table, want %v", all, trained)
	}
}
