package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// A cluster is upgraded server by server, and a member that cannot apply an entry
// stops. So nobody logs what not all members understand: each server says with its
// registration and its heartbeats what it does, and the metadata group logs the lowest of
// that, for the shards and for itself, once it has heard it of everybody. It only goes
// up. From then on a server that knows less is refused.

// MetadataVersion is the newest format of the metadata that this binary reads.
const MetadataVersion = frameVersion

const (
	// ungatedFrame is the metadata format of a binary that does not say which it knows.
	ungatedFrame = 6
	// raiseFrame is that of the command that raises versions.
	raiseFrame = 8

	// versionsWait is how long a new leader waits for the versions of silent servers
	// before it makes the shards of a new cluster without.
	versionsWait = 5 * time.Second
)

// Versions is what a server understands.
type Versions struct {
	Apply    uint16 // of entries in the shards' logs
	Metadata uint32 // of entries in the metadata group's
}

// OwnVersions is what this binary understands.
func OwnVersions() Versions { return Versions{wire.EntryVersion, MetadataVersion} }

// announced is what a server said, or did not.
func announced(apply, metadata uint32) Versions {
	if apply == 0 || metadata == 0 {
		return Versions{wire.UngatedVersion, ungatedFrame}
	}
	return Versions{uint16(min(apply, uint32(wire.EntryVersion))), min(metadata, frameVersion)}
}

// ApplyVersion is the newest apply version that may be logged in the shards of m.
func ApplyVersion(m *clustermap.Map) uint16 { return max(m.ApplyVersion, wire.UngatedVersion) }

// hear takes in what a server understands, or refuses one that the cluster has left
// behind.
func (s *Scheduler) hear(node rowraft.NodeID, label string, v Versions) error {
	if m := s.view.Map(); m != nil {
		shards := true
		if n, known := m.Node(node); known {
			shards = !n.NoShards
		}
		switch {
		case shards && v.Apply < m.ApplyVersion:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s understands log entries up to version %d, the cluster uses version %d: upgrade its binary", label, v.Apply, m.ApplyVersion)
		case slices.Contains(s.seated(), node) && v.Metadata < m.MetadataVersion:
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s understands metadata up to version %d, the cluster uses version %d: upgrade its binary", label, v.Metadata, m.MetadataVersion)
		}
	}
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	s.soft.versions[node] = v
	return nil
}

// versionsOf is what a server has said to this leader, or what this one would say.
func (s *Scheduler) versionsOf(node rowraft.NodeID) (Versions, bool) {
	s.soft.mu.Lock()
	v, known := s.soft.versions[node]
	s.soft.mu.Unlock()
	if !known && node == s.opts.Self.ID {
		return cmp.Or(s.opts.Announce, OwnVersions()), true
	}
	return v, known
}

// mayLog refuses a command that a member of the metadata group may not understand.
func (s *Scheduler) mayLog(version uint32) error {
	if version <= ungatedFrame {
		return nil
	}
	if m := s.view.Map(); m != nil && version <= m.MetadataVersion {
		return nil
	}
	// Before it is logged the word of every member does.
	for _, id := range s.seated() {
		name := s.seatLabel(id)
		switch v, known := s.versionsOf(id); {
		case !known:
			return rowraft.Errorf(rowraft.CodeStarting, "this needs metadata of version %d, and the scheduler in server %s has not said yet what it understands", version, name)
		case v.Metadata < version:
			return rowraft.Errorf(rowraft.CodeVersionTooNew, "this needs metadata of version %d, and the scheduler in server %s understands none above %d: upgrade it", version, name, v.Metadata)
		}
	}
	return nil
}

// mayApply refuses what the shards may not log yet.
func (s *Scheduler) mayApply(what string, version uint16) error {
	m := s.view.Map()
	if m == nil || version <= ApplyVersion(m) {
		return nil
	}
	low, held, known := s.lowest(m)
	code := rowraft.CodeVersionTooNew
	if !known || low.Apply >= version { // about to be raised
		code = rowraft.CodeStarting
	}
	return rowraft.Errorf(code, "%s needs log entries of version %d, the cluster is at %d: %s", what, version, ApplyVersion(m), cmp.Or(held, "that is about to change"))
}

// lowest is what all servers of m that count understand, and for people who holds the
// cluster back; known is false while one of them has not said.
func (s *Scheduler) lowest(m *clustermap.Map) (low Versions, heldBack string, known bool) {
	low, known = OwnVersions(), true
	note := func(label string, v Versions, ok, shards, member bool) {
		switch {
		case !ok:
			known = false
			heldBack = cmp.Or(heldBack, fmt.Sprintf("server %s has not said what it understands", label))
		case shards && v.Apply < low.Apply:
			low.Apply = v.Apply
			heldBack = fmt.Sprintf("server %s understands log entries up to version %d: upgrade it", label, v.Apply)
		case member && v.Metadata < low.Metadata:
			heldBack = fmt.Sprintf("server %s understands metadata up to version %d: upgrade it", label, v.Metadata)
		}
		if ok && member {
			low.Metadata = min(low.Metadata, v.Metadata)
		}
	}
	seated := s.seated()
	for _, id := range seated {
		if _, registered := m.Node(id); !registered {
			v, ok := s.versionsOf(id)
			note(s.seatLabel(id), v, ok, false, true)
		}
	}
	for _, n := range m.Nodes {
		v, ok := s.versionsOf(n.ID)
		member := slices.Contains(seated, n.ID)
		if !ok && !member && len(m.ShardsOn(n.ID)) == 0 {
			continue // it is away with nothing, and must say before it gets something
		}
		note(nodeLabel(&rowraftv1.Node{Id: string(n.ID), Name: n.Name}), v, ok, !n.NoShards, member)
	}
	return low, heldBack, known
}

// raiseVersions logs what all members understand now, if that is more than before. It
// reports whether all have said.
func (s *Scheduler) raiseVersions(ctx context.Context, m *clustermap.Map) (known bool, err error) {
	low, heldBack, known := s.lowest(m)
	if low == OwnVersions() { // of who has not said it is not known
		heldBack = ""
	}
	s.soft.mu.Lock()
	s.soft.heldBack = heldBack
	s.soft.mu.Unlock()
	if !known || low.Metadata < raiseFrame || low.Apply <= ApplyVersion(m) && low.Metadata <= max(m.MetadataVersion, ungatedFrame) {
		return known, nil
	}
	_, err = s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RaiseVersions{RaiseVersions: &rowraftv1.MetaRaiseVersions{
		ApplyVersion: uint32(low.Apply), MetadataVersion: low.Metadata,
	}}})
	if err != nil {
		return known, fmt.Errorf("raise the versions: %w", err)
	}
	s.logger.Info("all servers understand newer entries now", "apply", low.Apply, "metadata", low.Metadata)
	return known, nil
}

// awaitVersions reports whether the shards of a new cluster wait for the versions of its
// servers: what a client asks for first should not meet a cluster that does not know yet.
func (s *Scheduler) awaitVersions(ctx context.Context, m *clustermap.Map) (wait bool, err error) {
	known, err := s.raiseVersions(ctx, m)
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return !known && time.Since(s.soft.since) < versionsWait, err
}

// raiseVersions is the command. Versions never go down.
func (s *state) raiseVersions(c *rowraftv1.MetaRaiseVersions) error {
	apply, metadata := c.GetApplyVersion(), c.GetMetadataVersion()
	if apply > 1<<15 || metadata > 1<<15 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "versions %d and %d: want at most %d", apply, metadata, 1<<15)
	}
	next := Versions{max(s.cluster.ApplyVersion, uint16(apply)), max(s.cluster.MetadataVersion, metadata)}
	if next == (Versions{s.cluster.ApplyVersion, s.cluster.MetadataVersion}) {
		return nil
	}
	s.cluster.ApplyVersion, s.cluster.MetadataVersion = next.Apply, next.Metadata
	s.cluster.Version++
	return nil
}
