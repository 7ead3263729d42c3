package scheduler

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Entries and snapshots have one frame (docs/formats/metadata.md): magic,
// version, payload length, CRC-32C of all before it and of the payload, payload.
const (
	entryMagic    = "RRME"
	snapshotMagic = "RRMS"
	frameVersion  = 13 // the newest that this binary reads
	frameBytes    = 16
	readingFrame  = 13 // from which on readings of a part are told apart, and calls to enter may come too late
	tokenFrame    = 12 // join tokens
	baseFrame     = 11 // from which on a run knows how many steps its job had before
	dealtFrame    = 9  // from which on jobs deal their data by rank, and ask the shards how far it was read

	// maxSnapshotBytes bounds what a damaged length can make us allocate.
	maxSnapshotBytes = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// marshal is deterministic within one binary; nothing compares bytes of two.
var marshal = proto.MarshalOptions{Deterministic: true}

func encodeFrame(magic string, m proto.Message) ([]byte, error) {
	payload, err := marshal.Marshal(m)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "encode %s: %w", magic, err)
	}
	b := make([]byte, frameBytes, frameBytes+len(payload))
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[4:], versionOf(m))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, payload))
	return append(b, payload...), nil
}

// versionOf is the oldest version that knows all of m: who reads an older one only
// can go on reading what holds nothing new.
func versionOf(m proto.Message) uint32 {
	switch m := m.(type) {
	case *rowraftv1.MetaCommand:
		switch m.Command.(type) {
		case *rowraftv1.MetaCommand_CreateToken, *rowraftv1.MetaCommand_UseToken, *rowraftv1.MetaCommand_DeleteToken:
			return tokenFrame
		}
		if m.GetForgetJob() != nil || m.GetTakePart().GetNumbered() || m.GetEnterJob().GetRequest().GetRevision() >= lateRevision {
			return readingFrame
		}
		if m.GetEnterJob().GetRequest().GetBaseStep() > 0 {
			return baseFrame
		}
		if ofPlacement(m) {
			return placedFrame
		}
		if m.GetSettleParts() != nil || entersAnew(m.GetEnterJob()) {
			return dealtFrame
		}
		if m.GetPutNode().GetNode().GetNoShards() || laterOptimizer(m.GetCreateTable().GetTable()) || laterOptimizer(m.GetRestore().GetTables()...) {
			return 6
		}
		if m.GetRestore().GetSource() != nil {
			return 5
		}
		if anyExtended(m.GetCreateTable().GetTable()) || anyExtended(m.GetRestore().GetTables()...) {
			return 4
		}
		if m.GetDropTable() != nil {
			return 4
		}
		switch m.Command.(type) {
		case *rowraftv1.MetaCommand_EnterJob, *rowraftv1.MetaCommand_LeaveJob, *rowraftv1.MetaCommand_TakePart, *rowraftv1.MetaCommand_EndPart, *rowraftv1.MetaCommand_StopJob,
			*rowraftv1.MetaCommand_StartGeneration, *rowraftv1.MetaCommand_ForgetRun:
			return 7
		case *rowraftv1.MetaCommand_RaiseVersions:
			return 8
		case *rowraftv1.MetaCommand_StartMove, *rowraftv1.MetaCommand_AdvanceMove, *rowraftv1.MetaCommand_ForgetReplica:
			return 2
		case *rowraftv1.MetaCommand_BeginRestore, *rowraftv1.MetaCommand_Restore, *rowraftv1.MetaCommand_EndRestore:
			return 3
		case *rowraftv1.MetaCommand_Attend, *rowraftv1.MetaCommand_Leave, *rowraftv1.MetaCommand_SetPolicy, *rowraftv1.MetaCommand_DeletePolicy,
			*rowraftv1.MetaCommand_BeginPolicyRun, *rowraftv1.MetaCommand_EndPolicyRun, *rowraftv1.MetaCommand_ForgetCheckpoint:
			return 5
		}
	case *rowraftv1.MetaState:
		if slices.ContainsFunc(m.GetRuns(), toldApart) {
			return readingFrame
		}
		if len(m.GetTokens()) > 0 {
			return tokenFrame
		}
		if slices.ContainsFunc(m.GetRuns(), func(r *rowraftv1.MetaRun) bool { return r.GetBaseStep() > 0 }) {
			return baseFrame
		}
		if placed(m) {
			return placedFrame
		}
		if slices.ContainsFunc(m.GetRuns(), func(r *rowraftv1.MetaRun) bool { return r.GetGathering() || later(r.GetData()) }) {
			return dealtFrame
		}
		if m.GetMap().GetApplyVersion() > 0 || m.GetMap().GetMetadataVersion() > 0 {
			return 8
		}
		if len(m.GetRuns()) > 0 || len(m.GetEndedRuns()) > 0 {
			return 7
		}
		if slices.ContainsFunc(m.GetMap().GetNodes(), (*rowraftv1.Node).GetNoShards) || laterOptimizer(m.GetMap().GetTables()...) || laterOptimizer(m.GetRestore().GetTables()...) {
			return 6
		}
		if len(m.GetRestored()) > 0 || m.GetRestore().GetSource() != nil || len(m.GetTrainers()) > 0 || len(m.GetPolicies()) > 0 {
			return 5
		}
		if len(m.GetDropped()) > 0 || anyExtended(m.GetMap().GetTables()...) || anyExtended(m.GetRestore().GetTables()...) {
			return 4
		}
		if m.GetRestore() != nil || len(m.GetBegunRestore()) > 0 {
			return 3
		}
		if m.GetLastMove() > 0 {
			return 2
		}
	}
	return 1
}

// entersAnew reports whether a worker enters under a rule of version 9.
func entersAnew(c *rowraftv1.MetaEnterJob) bool {
	return c.GetRequest().GetRevision() > 0 || later(c.GetRequest().GetData())
}

// toldApart reports whether a run has a part with readings of version 13.
func toldApart(r *rowraftv1.MetaRun) bool {
	return slices.ContainsFunc(r.GetData().GetOpen(), func(p *rowraftv1.JobPart) bool { return p.GetReading() > 0 })
}

// later reports whether data is divided by a rule of version 9.
func later(d *rowraftv1.JobData) bool { return d.GetByRank() || d.GetInLog() }

// ofPlacement reports whether a command is one of version 10.
func ofPlacement(m *rowraftv1.MetaCommand) bool {
	start := m.GetStartMove()
	return m.GetSetIntent() != nil || m.GetEndOperation() != nil || m.GetRetireNode() != nil || m.GetPutNode().GetNode().GetLabels() != "" ||
		start != nil && (start.GetReason() != 0 || start.GetFromNode() == "" || start.GetTo().GetId() == "")
}

// placed reports whether a state has something of version 10.
func placed(m *rowraftv1.MetaState) bool {
	return len(m.GetOperations()) > 0 || len(m.GetRetired()) > 0 ||
		slices.ContainsFunc(m.GetMap().GetNodes(), func(n *rowraftv1.Node) bool { return n.GetLabels() != "" || n.GetIntent() != 0 }) ||
		slices.ContainsFunc(slices.Concat(m.GetMoves(), m.GetFinishedMoves()), func(m *rowraftv1.Move) bool {
			return m.GetReason() != 0 || m.GetFrom().GetId() == "" || m.GetTo().GetId() == ""
		})
}

// anyExtended reports whether a table has a property of version 4.
func anyExtended(tables ...*rowraftv1.TableSchema) bool {
	return slices.ContainsFunc(tables, func(t *rowraftv1.TableSchema) bool {
		return t.GetStorage() != 0 || t.GetAdmission() != nil || t.GetExpireTicks() != 0 || t.GetCapacity() != nil
	})
}

// laterOptimizer reports whether a table has an optimizer, or constants, of version 6.
func laterOptimizer(tables ...*rowraftv1.TableSchema) bool {
	return slices.ContainsFunc(tables, func(t *rowraftv1.TableSchema) bool {
		o := t.GetOptimizer()
		return o.GetKind() > uint32(rowraft.Adam) || o.GetMomentum() != 0 || o.GetWeightDecay() != 0 || o.GetBound() != 0 ||
			o.GetL1() != 0 || o.GetL2() != 0 || o.GetBeta() != 0
	})
}

// decodeFrame reads one frame and nothing behind it from r.
func decodeFrame(r io.Reader, magic string, m proto.Message) error {
	var head [frameBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: header: %w", magic, err)
	}
	if string(head[:4]) != magic {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata: magic %q, want %q", head[:4], magic)
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v < 1 || v > frameVersion {
		code := rowraft.CodeCorrupt
		if v > frameVersion {
			code = rowraft.CodeVersionTooNew
		}
		return rowraft.Errorf(code, "metadata %s: version %d, this binary knows %d", magic, v, frameVersion)
	}
	n := binary.LittleEndian.Uint32(head[8:])
	if n > maxSnapshotBytes {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %d bytes announced, at most %d are possible", magic, n, maxSnapshotBytes)
	}
	payload, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: payload: %w", magic, err)
	}
	if len(payload) != int(n) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %d bytes of %d", magic, len(payload), n)
	}
	sum := crc32.Update(crc32.Checksum(head[:12], castagnoli), castagnoli, payload)
	if want := binary.LittleEndian.Uint32(head[12:]); sum != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: checksum %08x, want %08x", magic, sum, want)
	}
	// A field that this binary does not know would be dropped from the state.
	if err := (proto.UnmarshalOptions{}).Unmarshal(payload, m); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata %s: %w", magic, err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "metadata %s: it has fields this binary does not know", magic)
	}
	return nil
}

func encodeCommand(c *rowraftv1.MetaCommand) ([]byte, error) { return encodeFrame(entryMagic, c) }
