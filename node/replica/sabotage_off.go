//go:build !rowraft_canary

package replica

import "github.com/rowraft/rowraft/raftstore"

// sabotage returns m. Builds with the tag rowraft_canary change the entries that m applies.
func sabotage(m stateMachine) raftstore.StateMachine { return m }
