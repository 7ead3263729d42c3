package checkpoints

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// manifest stores the blobs, checks that this server can read every file, and sums the tables of all shards.
func (op *creation) manifest(
	ctx context.Context,
	files []*shardFileWriter,
	trainers Pause,
) (*checkpoint.Manifest, error) {
	m := &checkpoint.Manifest{
		ID: op.id.String(), Created: op.created, Binary: op.c.version, HashVers: clustermap.HashVersion,
		Slots:   files[0].cluster.SlotCount(),
		Cluster: files[0].cluster.Cluster, Epoch: files[0].epoch, Map: files[0].cluster.Version, Parent: op.base.parent(),
	}
	if op.base != nil && op.base.epoch != m.Epoch {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the base %s is of table epoch %d, and the cluster is of %d by now", op.base.name, op.base.epoch, m.Epoch)
	}
	for _, p := range files {
		file, err := p.shardFile()
		if err != nil {
			return nil, err
		}
		m.Shards = append(m.Shards, file)
		m.HeldFor = max(m.HeldFor, p.held)
		if err := addTables(m, p.done.GetTables()); err != nil {
			return nil, fmt.Errorf("shard %d: %w", p.shard.ID, err)
		}
	}
	if err := checkWhole(files, op.c.view.Map().Tables); err != nil {
		return nil, err
	}
	blobs := slices.SortedFunc(slices.Values(op.req.GetBlobs()), func(a, b *rowraftv1.CheckpointBlob) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	for i, b := range blobs {
		f := checkpoint.File{Name: fmt.Sprintf("blob-%04d-%x", i, op.tag()), Bytes: int64(len(b.GetContent())),
			SHA256: sha256.Sum256(b.GetContent())}
		if err := op.depot.Put(ctx, op.name+"/"+f.Name, b.GetContent()); err != nil {
			return nil, err
		}
		m.Blobs = append(m.Blobs, checkpoint.Blob{Name: b.GetName(), File: f})
	}
	stored, err := trainers.Blobs(ctx, op.depot, op.name, op.tag())
	if err != nil {
		return nil, err
	}
	m.Blobs = append(m.Blobs, stored...)
	slices.SortFunc(m.Blobs, func(a, b checkpoint.Blob) int { return strings.Compare(a.Name, b.Name) })
	return m, op.checkFiles(ctx, m)
}

// checkFiles returns an error if this server cannot find a file that another server wrote, which means that the
// directory is not shared. It also deletes the files of this checkpoint's earlier attempts.
func (op *creation) checkFiles(ctx context.Context, m *checkpoint.Manifest) error {
	found, err := op.depot.List(ctx, op.name)
	if err != nil {
		return err
	}
	if f, ok := missing(op.name, m, found); ok {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"file %s was written by a shard's server, and this server does not find it in %s: a directory must be shared by "+
				"all servers, under one path", f, op.depot)
	}
	var left []string
	for _, e := range found {
		if op.wrote(e) && !slices.ContainsFunc(m.Files(),
			func(f checkpoint.File) bool { return op.name+"/"+f.Name == e.Name }) {
			left = append(left, e.Name)
		}
	}
	return op.depot.Remove(ctx, left...)
}

// missing returns a file of m that is absent or has another size.
func missing(name string, m *checkpoint.Manifest, found []depot.Entry) (file string, ok bool) {
	for _, f := range m.Files() {
		if !slices.Contains(found, depot.Entry{Name: name + "/" + f.Name, Bytes: f.Bytes}) {
			return f.Name, true
		}
	}
	return "", false
}

// checkWhole refuses a cut during which a table was dropped: the checkpoint would lack the rows of some shards. now are
// the tables of the current map. A table that only now has is being created, so it is empty in every shard. A table
// that neither now nor the map of the cut has was dropped earlier, and some shards have not dropped it yet.
func checkWhole(files []*shardFileWriter, now []rowraft.Schema) error {
	was := files[0].cluster.Tables
	for _, p := range files {
		for _, t := range p.done.GetTables() {
			id, name := rowraft.TableID(t.GetTable().GetId()), t.GetTable().GetName()
			if !meta.HasTable(was, id) && meta.HasTable(now, id) {
				continue
			}
			if i := slices.IndexFunc(files, func(o *shardFileWriter) bool { return !o.hasTable(id) }); i >= 0 {
				return rowraft.Errorf(rowraft.CodePrecondition, "table %s was dropped while the checkpoint was cut: shard %d has "+
					"none of it any more, others do; make the checkpoint again", name, files[i].shard.ID)
			}
		}
	}
	return nil
}

// hasTable reports whether a finished shard file has the table.
func (p *shardFileWriter) hasTable(id rowraft.TableID) bool {
	return slices.ContainsFunc(p.done.GetTables(), func(t *rowraftv1.ShardFileTable) bool {
		return rowraft.TableID(t.GetTable().GetId()) == id
	})
}

func addTables(m *checkpoint.Manifest, tables []*rowraftv1.ShardFileTable) error {
	for _, t := range tables {
		schema, digest := rpc.SchemaFromProto(t.GetTable()), checkpoint.Digest{}
		if len(t.GetDigest()) != len(digest) {
			return rowraft.Errorf(rowraft.CodeInternal, "table %s: a digest of %d bytes", schema.Name, len(t.GetDigest()))
		}
		digest = checkpoint.Digest(t.GetDigest())
		i, ok := slices.BinarySearchFunc(m.Tables, schema.ID, func(s checkpoint.TableSum, id rowraft.TableID) int {
			switch {
			case s.Schema.ID < id:
				return -1
			case s.Schema.ID > id:
				return 1
			}
			return 0
		})
		if !ok {
			m.Tables = slices.Insert(m.Tables, i, checkpoint.TableSum{Schema: schema})
		}
		if m.Tables[i].Schema != schema {
			return rowraft.Errorf(rowraft.CodeInternal, "table %s is not the same in all shards", schema.Name)
		}
		m.Tables[i].Rows += t.GetRows()
		m.Tables[i].Written += t.GetWritten()
		m.Tables[i].Digest = m.Tables[i].Digest.Add(digest)
	}
	return nil
}
