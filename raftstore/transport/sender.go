package transport

import (
	"bytes"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/timers"
)

// splitSender splits a sender's address into its node, the replica that the message is for, and the encoded report of
// the timers.
func splitSender(addr []byte) (node []byte, to raft.ServerID, report []byte) {
	node, rest, _ := bytes.Cut(addr, []byte{0})
	replica, report, _ := bytes.Cut(rest, []byte{0})
	return node, raft.ServerID(replica), report
}

// joinSender is the inverse of splitSender.
func joinSender(node []byte, to raft.ServerID, report timers.Report) []byte {
	b := make([]byte, 0, len(node)+len(to)+2+timers.ReportBytes)
	b = append(append(b, node...), 0)
	return report.Append(append(append(b, to...), 0))
}
