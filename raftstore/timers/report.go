package timers

import (
	"encoding/binary"
	"time"
)

// Report is what one replica says of its timers in each message. Each duration is a heartbeat timeout; the lease
// follows from it.
type Report struct {
	Want    time.Duration // needed by the replica; from a leader, used by the group
	Now     time.Duration // in use by raft
	Started time.Duration // used to start raft: raft's lease is that of this timeout
	Restart bool          // from a leader: the receiver may restart
}

// ReportBytes is the size of a Report in a message (docs/formats/peer.md).
const ReportBytes = 13

// Append appends the report to b.
func (r Report) Append(b []byte) []byte {
	for _, d := range []time.Duration{r.Want, r.Now, r.Started} {
		b = binary.LittleEndian.AppendUint32(b, uint32(d.Microseconds()))
	}
	if r.Restart {
		return append(b, 1)
	}
	return append(b, 0)
}

// ParseReport decodes a report; false if b is none, as in raft's own messages.
func ParseReport(b []byte) (r Report, ok bool) {
	if len(b) != ReportBytes || b[12] > 1 {
		return Report{}, false
	}
	for i, d := range []*time.Duration{&r.Want, &r.Now, &r.Started} {
		us := binary.LittleEndian.Uint32(b[4*i:])
		if *d = time.Duration(us) * time.Microsecond; *d <= 0 || *d > time.Minute {
			return Report{}, false
		}
	}
	r.Restart = b[12] == 1
	return r, true
}
