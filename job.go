package rowraft

import "fmt"

// JobID names one training job: 16 random bytes from the scheduler. It never comes
// back once the job has ended.
type JobID [16]byte

// Generation counts the memberships of a job, from 1. Workers that come or go make
// a new one.
type Generation uint64

// Rank numbers the workers of a job, from 0, less than MaxRanks.
type Rank uint32

// Step counts a job's batches, from 1.
type Step uint64

// MaxSessions is how many pushing clients a shard remembers, MaxOwnerSessions how many of
// them one owner may have: all clients whose ids begin with the same 8 bytes.
const (
	MaxSessions      = 4096
	MaxOwnerSessions = MaxSessions / 2
)

// MaxRanks bounds the ranks of a job.
const MaxRanks = 1024

// PositionID names a position in a job's data, higher for data that is handed out later.
type PositionID uint64

// lastReading shares its ids with all readings after it.
const lastReading = 255

// PositionIDs returns the two ids under which a shard stores how far the split of this
// number was read: up to where every shard has applied it, and up to where this shard has.
// Numbers count the splits of all epochs, from 0. A split that changes hands has two ids
// for each reading, from 1, so that a late push of the earlier reader does not move the
// position of the later one.
func PositionIDs(number, reading uint64) (acknowledged, applied PositionID) {
	n := number<<9 | min(reading, lastReading)<<1
	return PositionID(n), PositionID(n + 1)
}

// Position is how far a split was read, in its reader's unit.
type Position struct {
	ID     PositionID
	Offset uint64
}

// StepClosedError reports a gradient that came after its step was closed without it:
// it has no effect, and its worker goes on with step Next.
type StepClosedError struct {
	Shard ShardID
	Step  Step // of the gradient
	Next  Step // the shard's first open step
	// Unsure says that the step was closed so long ago that the shard does not know
	// any more who contributed: the gradient may have.
	Unsure bool
}

func (e *StepClosedError) Error() string {
	if e.Unsure {
		return fmt.Sprintf("shard %d: step %d is closed, and it is not known any more with whom: continue with step %d",
			e.Shard, e.Step, e.Next)
	}
	return fmt.Sprintf("shard %d: step %d was closed without this gradient: continue with step %d", e.Shard, e.Step,
		e.Next)
}

func (e *StepClosedError) Code() Code { return CodeStepClosed }

// StaleGenerationError reports a call for a generation of a job that has been
// followed by another. Nothing was applied.
type StaleGenerationError struct {
	Shard      ShardID
	Have, Want Generation // of the call, and of the shard
	Next       Step       // the first step that is open now
}

func (e *StaleGenerationError) Error() string {
	return fmt.Sprintf("shard %d: the call is of generation %d of its job, which is at generation %d and step %d", e.Shard,
		e.Have, e.Want, e.Next)
}

func (e *StaleGenerationError) Code() Code { return CodeStaleGeneration }
