package route

import "github.com/rowraft/rowraft"

// Layer is a kind of call. One code can ask for different actions in different layers.
type Layer uint8

const (
	// Table is a call of the Table service to the leader of a shard. Each such call may
	// be sent twice: it reads, or it carries a number that the shard applies once.
	Table Layer = iota
	// Replica is a bounded read, which any replica of a shard may answer.
	Replica
	// Control is a call to the scheduler's leader, or a call of the Replicas
	// service to the leader of a shard, that may be sent twice.
	Control
	// Once is a Control call that must not take effect twice.
	Once
	// Batch is one numbered batch of a push, assign or delete. It sees the errors that
	// end a call of layer Table.
	Batch
	// Step is the gradient of one worker for one synchronous step. It sees the errors
	// that end a call of layer Table.
	Step

	layers
)

// Action is what the caller does about an error.
type Action uint8

const (
	// Return ends the call with the error.
	Return Action = iota + 1
	// Follow asks the leader that the error names, at once. If the error names none,
	// Follow is Next.
	Follow
	// Next backs off and asks another server. The server that answered is healthy.
	// A Replica call ends when it has asked all replicas.
	Next
	// Avoid is Next after an error that does not show a healthy server. A Table call may
	// be relayed around that server; a Replica call asks it last for a while.
	Avoid
	// Wait asks the same server again, after the time that the error names. Each Wait of a
	// Table or Replica call takes one token of the client's retry budget.
	Wait
	// Refresh fetches a newer cluster map and sends the call again: a pull is split by the
	// new map, a batch goes to the same shard under the same number. If the map is not older
	// than the server's, Refresh is Return.
	Refresh
	// Resend sends the same batch under the same number again, for a bounded time: this
	// server cannot tell what became of it, and the next leader can.
	Resend
	// Renew opens another session and gives the batch a number there, if no try of the
	// batch may have been applied. Otherwise Renew is Return.
	Renew
	// Adopt takes the generation that the error names and sends the step again.
	Adopt
	// Late ends the call without an error: the step was closed without this gradient.
	Late
)

var actionNames = [...]string{"", "Return", "Follow", "Next", "Avoid", "Wait", "Refresh", "Resend", "Renew", "Adopt",
	"Late"}

func (a Action) String() string { return actionNames[a] }

// actions is the table. TestEveryCodeHasAnAction fails for a code without a row.
var actions = [...][layers]Action{
	//                           Table    Replica  Control Once    Batch    Step
	rowraft.CodeUnknown:         {Avoid, Avoid, Next, Return, Return, Return},
	rowraft.CodeInvalidArgument: {Return, Return, Return, Return, Return, Return},
	rowraft.CodeTableNotFound:   {Return, Return, Return, Return, Return, Return},
	rowraft.CodeTableExists:     {Return, Return, Return, Return, Return, Return},
	rowraft.CodeNotLeader:       {Follow, Avoid, Follow, Follow, Return, Return},
	rowraft.CodeWrongShard:      {Refresh, Refresh, Next, Next, Refresh, Return},
	rowraft.CodeNoLeader:        {Next, Avoid, Next, Next, Return, Return},
	rowraft.CodeStarting:        {Next, Avoid, Next, Next, Return, Return},
	rowraft.CodeClosing:         {Avoid, Avoid, Next, Next, Return, Return},
	rowraft.CodeTooStale:        {Next, Next, Next, Next, Return, Return},
	rowraft.CodeOverloaded:      {Wait, Wait, Wait, Wait, Return, Return},
	rowraft.CodeLeadershipLost:  {Avoid, Avoid, Next, Return, Return, Return},
	rowraft.CodeDeadline:        {Avoid, Avoid, Next, Return, Return, Return},
	rowraft.CodeSessionExpired:  {Return, Return, Return, Return, Renew, Return},
	rowraft.CodeVersionTooNew:   {Return, Return, Return, Return, Return, Return},
	rowraft.CodeCorrupt:         {Return, Return, Return, Return, Return, Return},
	rowraft.CodeInternal:        {Return, Return, Return, Return, Resend, Resend},
	// a server of another cluster at an address of this one
	rowraft.CodeIdentity:        {Avoid, Avoid, Return, Return, Return, Return},
	rowraft.CodeNotFound:        {Return, Return, Return, Return, Return, Return},
	rowraft.CodeAlreadyExists:   {Return, Return, Return, Return, Return, Return},
	rowraft.CodePrecondition:    {Return, Return, Return, Return, Return, Return},
	rowraft.CodeFenced:          {Avoid, Avoid, Next, Return, Return, Return},
	rowraft.CodeStepClosed:      {Return, Return, Return, Return, Return, Late},
	rowraft.CodeStaleGeneration: {Return, Return, Return, Return, Return, Adopt},
	rowraft.CodeNotMember:       {Return, Return, Return, Return, Return, Return},
	rowraft.CodeDenied:          {Return, Return, Return, Return, Return, Return},
	rowraft.CodeNotSent:         {Avoid, Avoid, Next, Next, Return, Return},
}

// On returns what a caller of layer l does about err, which must not be nil.
func On(l Layer, err error) Action { return OnCode(l, rowraft.CodeOf(err)) }

// OnCode is [On] for a code. A code without a row is treated as CodeUnknown.
func OnCode(l Layer, c rowraft.Code) Action {
	if int(c) >= len(actions) {
		c = rowraft.CodeUnknown
	}
	return actions[c][l]
}
