package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A server stores the newest map that its replicas follow, so that it can start them without a call
// (docs/formats/clustermap.md). The scheduler's map is authoritative. The stored map may be old, and does
// not name the leader or the voters of a shard: the logs of the replicas have those.

const (
	keptMapName    = "CLUSTERMAP"
	keptMapMagic   = "RRCM"
	keptMapVersion = 1
	keptMapHead    = 16 // bytes before the payload

	// keptMapGrace is how long a member of the scheduler waits for that group, which has the newest
	// map, before it follows the stored one.
	keptMapGrace = 5 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writeKeptMap durably replaces the map in the data directory dir.
func writeKeptMap(disk vfs.FS, dir string, m *clustermap.Map) error {
	raw, err := encodeKeptMap(m)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, keptMapName)
	return vfs.ReplaceFile(disk, name+".new", name, raw)
}

// readKeptMap returns the map in dir; nil if there is none.
func readKeptMap(disk vfs.FS, dir string) (*clustermap.Map, error) {
	raw, err := vfs.ReadFile(disk, filepath.Join(dir, keptMapName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeKeptMap(raw)
}

// keepMap stores the map that the replicas of this server now follow. REQUIRES: the replicas have been
// started, so that no replica is ever founded from a map that may be old.
//
// A member of the scheduler replays old maps after a restart: keepMap never replaces the stored map
// with an older one.
func (n *Node) keepMap(m *clustermap.Map) {
	if m.Version <= n.keptVersion {
		return
	}
	if err := writeKeptMap(n.cfg.FS, n.cfg.DataDir, m); err != nil {
		n.log.Warn(
			"the cluster map could not be kept: without the scheduler this server will start from an older one, or not",
			"map_version", uint64(m.Version), "err", err)
		return
	}
	n.keptVersion = m.Version
}

// recallMap returns the stored map, or nil.
//
// Errors: CodeIdentity if the map belongs to another cluster. recallMap logs a map that it cannot read, and
// leaves the file: the next map replaces it.
func (n *Node) recallMap(cluster rowraft.ClusterID) (*clustermap.Map, error) {
	m, err := readKeptMap(n.cfg.FS, n.cfg.DataDir)
	if err != nil {
		n.log.Warn("the cluster map that was kept is not used; waiting for the scheduler's", "file", keptMapName, "err", err)
		return nil, nil
	}
	if m == nil {
		return nil, nil
	}
	if err := identity.CheckCluster(cluster, m.Cluster); err != nil {
		return nil, fmt.Errorf("%s in %s: %w", keptMapName, n.cfg.DataDir, err)
	}
	n.keptVersion = m.Version
	return m, nil
}

// followKept makes kept the newest map unless a newer one arrives first. A server that fetches the map from
// others follows kept at once, a member of the scheduler after keptMapGrace.
func (n *Node) followKept(ctx context.Context, kept *clustermap.Map, grace time.Duration) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	for view := n.sched.View(); ; {
		m, changed := view.Changed()
		if m != nil && m.Version >= kept.Version {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			n.log.Info("follows the cluster map that it kept", "map_version", uint64(kept.Version))
			view.Set(kept)
			return
		case <-ctx.Done():
			return
		}
	}
}

func encodeKeptMap(m *clustermap.Map) ([]byte, error) {
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(rpc.MapToProto(m))
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "encode the cluster map: %w", err)
	}
	b := make([]byte, keptMapHead, keptMapHead+len(payload))
	copy(b, keptMapMagic)
	binary.LittleEndian.PutUint32(b[4:], keptMapVersion)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, payload))
	return append(b, payload...), nil
}

// decodeKeptMap parses the output of encodeKeptMap. Errors: CodeCorrupt, CodeVersionTooNew.
func decodeKeptMap(raw []byte) (*clustermap.Map, error) {
	corrupt := func(format string, args ...any) (*clustermap.Map, error) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "kept cluster map: "+format, args...)
	}
	if len(raw) < keptMapHead || string(raw[:4]) != keptMapMagic {
		return corrupt("no header, or another magic")
	}
	if v := binary.LittleEndian.Uint32(raw[4:]); v > keptMapVersion {
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "kept cluster map: version %d, this binary knows %d", v,
			keptMapVersion)
	} else if v < 1 {
		return corrupt("version %d", v)
	}
	payload := raw[keptMapHead:]
	if n := binary.LittleEndian.Uint32(raw[8:]); uint64(n) != uint64(len(payload)) {
		return corrupt("%d bytes, announced as %d", len(payload), n)
	}
	sum := crc32.Update(crc32.Checksum(raw[:12], castagnoli), castagnoli, payload)
	if want := binary.LittleEndian.Uint32(raw[12:]); sum != want {
		return corrupt("checksum %08x, want %08x", sum, want)
	}
	var p rowraftv1.Map
	if err := proto.Unmarshal(payload, &p); err != nil {
		return corrupt("%w", err)
	}
	m, err := rpc.MapFromProto(&p)
	if err != nil {
		return corrupt("%w", err)
	}
	if m.Cluster == "" || m.Version == 0 {
		return corrupt("cluster %q, version %d", m.Cluster, m.Version)
	}
	return m, nil
}
