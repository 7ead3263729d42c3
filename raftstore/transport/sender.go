package transport

import (
	"bytes"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/turns"
)

// splitSender splits a sender's address into its node, the replica that the message is for, the encoded report of the
// timers, the turn flags, and what follows.
func splitSender(addr []byte) (node []byte, to raft.ServerID, report []byte, flags turns.Flags, rest []byte) {
	node, rest, _ = bytes.Cut(addr, []byte{0})
	replica, rest, _ := bytes.Cut(rest, []byte{0})
	n := min(len(rest), timers.ReportBytes)
	report, rest = rest[:n], rest[n:]
	n = min(len(rest), turns.FlagsBytes)
	return node, raft.ServerID(replica), report, turns.Parse(rest[:n]), rest[n:]
}

// joinSender is the inverse of splitSender, without what follows.
func joinSender(node []byte, to raft.ServerID, report timers.Report, flags turns.Flags) []byte {
	b := make([]byte, 0, len(node)+len(to)+2+timers.ReportBytes+turns.FlagsBytes)
	b = append(append(b, node...), 0)
	return append(report.Append(append(append(b, to...), 0)), byte(flags))
}
