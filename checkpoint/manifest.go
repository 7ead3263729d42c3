package checkpoint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// ManifestVersion is that of the manifests that this binary writes, and the newest that it reads.
const ManifestVersion = 1

// ManifestFile is the name of the file that makes a set of files a checkpoint.
// It is written last.
const ManifestFile = "MANIFEST"

// maxManifest is what a reader accepts: 1,024 tables, 4,096 shard files and 4,096 blobs
// take a third of it.
const maxManifest = 16 << 20

// Manifest describes a checkpoint: a cut through all shards of a cluster
// (docs/formats/checkpoint.md). Slices are in the order the page names.
type Manifest struct {
	ID       string // UUID of this checkpoint; the mark entries carry it
	Created  time.Time
	Binary   string // version of the server that wrote it
	Cluster  rowraft.ClusterID
	Epoch    rowraft.TableEpoch
	Map      rowraft.MapVersion
	HeldFor  time.Duration // the longest that a push waited for the cut
	Parent   *Parent       // what it is a delta to; nil: it is full
	Tables   []TableSum    // ascending by ID
	Shards   []ShardFile   // ascending by shard
	Blobs    []Blob        // ascending by name
	HashVers uint16
	Slots    rowraft.SlotCount // of the source cluster
}

// Parent names the checkpoint that a delta extends. Both lie in the same destination.
type Parent struct {
	Name string
	ID   string
}

// TableSum is one table and what there was of it at the cut.
type TableSum struct {
	Schema  rowraft.Schema
	Rows    uint64
	Digest  Digest
	Written uint64 // rows in the streams: all, or those that a delta has
}

// ShardFile is one shard at one applied index. Rows and Digest are of all that it held,
// in a delta too.
type ShardFile struct {
	Shard   rowraft.ShardID
	Applied rowraft.Index // that of the mark entry
	Slots   []rowraft.Slot
	Rows    uint64
	Digest  Digest
	Written uint64 // rows in Stream
	Stream  File   // a snapshot (docs/formats/snapshot.md)
	Sums    File   // rows and digest of each slot
}

// File is one file of a checkpoint.
type File struct {
	Name   string
	Bytes  int64
	SHA256 [32]byte
}

// Blob is what a trainer gave to be kept: dense weights of its own, its position
// in the data. Its content is the trainer's business.
type Blob struct {
	Name string
	File File
}

// Rows is the sum over all shard files.
func (m *Manifest) Rows() uint64 {
	n := uint64(0)
	for _, p := range m.Shards {
		n += p.Rows
	}
	return n
}

// Written is the sum over all shard files.
func (m *Manifest) Written() uint64 {
	n := uint64(0)
	for _, p := range m.Shards {
		n += p.Written
	}
	return n
}

// Bytes is the size of all files but the manifest.
func (m *Manifest) Bytes() int64 {
	n := int64(0)
	for _, f := range m.Files() {
		n += f.Bytes
	}
	return n
}

// Files lists every file but the manifest.
func (m *Manifest) Files() []File {
	var out []File
	for _, p := range m.Shards {
		out = append(out, p.Stream, p.Sums)
	}
	for _, b := range m.Blobs {
		out = append(out, b.File)
	}
	return out
}

// The JSON of a manifest. Field names and their order are the format.
type (
	manifestJSON struct {
		ID          string          `json:"id"`
		Created     string          `json:"created"`
		Binary      string          `json:"binary"`
		Cluster     string          `json:"cluster"`
		Epoch       uint64          `json:"epoch"`
		MapVersion  uint64          `json:"map_version"`
		HashVersion uint16          `json:"hash_version"`
		SlotCount   uint32          `json:"slot_count"`
		HeldNs      int64           `json:"held_ns"`
		Parent      string          `json:"parent"`
		ParentID    string          `json:"parent_id,omitempty"`
		Tables      []tableJSON     `json:"tables"`
		Shards      []shardFileJSON `json:"shards"`
		Blobs       []blobJSON      `json:"blobs"`
	}
	tableJSON struct {
		Name    string  `json:"name"`
		Rows    uint64  `json:"rows"`
		Digest  string  `json:"digest"`
		Written *uint64 `json:"written,omitempty"`
		Schema  string  `json:"schema"`
	}
	shardFileJSON struct {
		Shard   uint32   `json:"shard"`
		Applied uint64   `json:"applied_index"`
		Slots   string   `json:"slots"`
		Rows    uint64   `json:"rows"`
		Digest  string   `json:"digest"`
		Written *uint64  `json:"written,omitempty"`
		Stream  fileJSON `json:"stream"`
		Sums    fileJSON `json:"sums"`
	}
	blobJSON struct {
		Name string   `json:"name"`
		File fileJSON `json:"file"`
	}
	fileJSON struct {
		Name   string `json:"name"`
		Bytes  int64  `json:"bytes"`
		SHA256 string `json:"sha256"`
	}
)

// Encode returns the manifest's bytes.
//
// Errors: CodeInternal if m is not one that ParseManifest would take.
func (m *Manifest) Encode() ([]byte, error) {
	j := manifestJSON{
		ID: m.ID, Created: m.Created.UTC().Format(time.RFC3339Nano), Binary: m.Binary, Cluster: string(m.Cluster),
		Epoch:      uint64(m.Epoch),
		MapVersion: uint64(m.Map), HashVersion: m.HashVers, SlotCount: uint32(m.Slots), HeldNs: int64(m.HeldFor),
		Tables: []tableJSON{}, Shards: []shardFileJSON{}, Blobs: []blobJSON{},
	}
	written := func(uint64) *uint64 { return nil }
	if m.Parent != nil {
		j.Parent, j.ParentID = m.Parent.Name, m.Parent.ID
		written = func(n uint64) *uint64 { return &n }
	}
	for _, t := range m.Tables {
		j.Tables = append(j.Tables, tableJSON{
			Name: t.Schema.Name, Rows: t.Rows, Digest: hex.EncodeToString(t.Digest[:]), Written: written(t.Written),
			Schema: hex.EncodeToString(wire.AppendSchema(nil, &t.Schema)),
		})
	}
	for _, p := range m.Shards {
		j.Shards = append(j.Shards, shardFileJSON{
			Shard: uint32(p.Shard), Applied: uint64(p.Applied), Slots: formatSlots(p.Slots), Rows: p.Rows,
			Digest:  hex.EncodeToString(p.Digest[:]),
			Written: written(p.Written), Stream: fileToJSON(p.Stream), Sums: fileToJSON(p.Sums),
		})
	}
	for _, b := range m.Blobs {
		j.Blobs = append(j.Blobs, blobJSON{b.Name, fileToJSON(b.File)})
	}
	body, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "encode a manifest: %w", err)
	}
	body = append(body, '\n')
	out := fmt.Appendf(nil, "%s %d %08x %d\n", manifestMagic, ManifestVersion, crc32.Checksum(body, castagnoli), len(body))
	out = append(out, body...)
	if _, err := ParseManifest(out); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "the manifest would not be readable: %w", err)
	}
	return out, nil
}

func fileToJSON(f File) fileJSON { return fileJSON{f.Name, f.Bytes, hex.EncodeToString(f.SHA256[:])} }

const manifestMagic = "ROWRAFT-CHECKPOINT"

var (
	manifestStart = regexp.MustCompile(`^` + manifestMagic + ` ([1-9][0-9]{0,8})[ \n]`)
	manifestLine  = regexp.MustCompile(`^` + manifestMagic + ` 1 ([0-9a-f]{8}) ([1-9][0-9]{0,8})\n`)
)

// ParseManifest reads a manifest and checks all that it says of itself.
//
// Errors: CodeVersionTooNew; CodeCorrupt.
func ParseManifest(b []byte) (*Manifest, error) {
	start := manifestStart.FindSubmatch(b)
	if start == nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: it does not start with %q and a version", manifestMagic)
	}
	v, _ := strconv.Atoi(string(start[1]))
	if v > ManifestVersion {
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"manifest has format %d; this binary knows up to %d: upgrade it", v, ManifestVersion)
	}
	line := manifestLine.FindSubmatch(b)
	if line == nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: its first line is damaged")
	}
	body := b[len(line[0]):]
	if n, _ := strconv.Atoi(string(line[2])); n != len(body) || n > maxManifest {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: %d bytes follow the first line, which says %d", len(body),
			n)
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)); sum != string(line[1]) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: checksum is %s, want %s", sum, line[1])
	}
	var j manifestJSON
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: %w", err)
	}
	if rest, err := io.ReadAll(dec.Buffered()); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: bytes follow its JSON")
	}
	if j.HashVersion > clustermap.HashVersion {
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"manifest: hash version %d: this binary knows up to %d: upgrade it", j.HashVersion, clustermap.HashVersion)
	}
	m, err := j.manifest()
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "manifest: %w", err)
	}
	return m, nil
}

func (j *manifestJSON) manifest() (*Manifest, error) {
	created, err := time.Parse(time.RFC3339Nano, j.Created)
	if err != nil {
		return nil, err
	}
	if j.ID == "" || j.Cluster == "" || j.Epoch == 0 || j.HashVersion == 0 || j.HeldNs < 0 {
		return nil, fmt.Errorf("id %q, cluster %q, epoch %d, hash version %d, held %d ns: not all of them are possible", j.ID,
			j.Cluster, j.Epoch, j.HashVersion, j.HeldNs)
	}
	m := &Manifest{
		ID: j.ID, Created: created.UTC(), Binary: j.Binary, Cluster: rowraft.ClusterID(j.Cluster),
		Epoch: rowraft.TableEpoch(j.Epoch),
		Map:   rowraft.MapVersion(j.MapVersion), HashVers: j.HashVersion, Slots: rowraft.SlotCount(j.SlotCount),
		HeldFor: time.Duration(j.HeldNs),
	}
	if err := m.Slots.Check(); err != nil {
		return nil, err
	}
	if j.Parent != "" || j.ParentID != "" {
		if err := CheckName(j.Parent); err != nil || j.ParentID == "" || j.ParentID == j.ID {
			return nil, fmt.Errorf("its parent is %q with id %s", j.Parent, j.ParentID)
		}
		m.Parent = &Parent{Name: j.Parent, ID: j.ParentID}
	}
	for _, t := range j.Tables {
		if err := m.addTable(t); err != nil {
			return nil, fmt.Errorf("table %s: %w", t.Name, err)
		}
	}
	for _, p := range j.Shards {
		if err := m.addShard(p); err != nil {
			return nil, fmt.Errorf("shard %d: %w", p.Shard, err)
		}
	}
	for _, b := range j.Blobs {
		f, err := b.File.file()
		if err != nil || !blobName.MatchString(b.Name) || len(m.Blobs) > 0 && b.Name <= m.Blobs[len(m.Blobs)-1].Name {
			return nil, fmt.Errorf("blob %q: impossible or out of order: %w", b.Name, err)
		}
		m.Blobs = append(m.Blobs, Blob{b.Name, f})
	}
	return m, m.checkSums()
}

var checkpointName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// CheckName reports a name that no checkpoint can have, as CodeInvalidArgument.
func CheckName(name string) error {
	if !checkpointName.MatchString(name) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint name %q: want a letter or digit, then up to 99 letters, digits, '_', '.' or '-'", name)
	}
	return nil
}

var blobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,255}$`)

// CheckBlobName reports a name that no blob can have, as CodeInvalidArgument.
func CheckBlobName(name string) error {
	if !blobName.MatchString(name) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"blob name %q: want a letter or digit, then up to 255 letters, digits, '.', '_', '-' or '/'", name)
	}
	return nil
}

func (m *Manifest) addTable(t tableJSON) error {
	digest, err := parseDigest(t.Digest)
	if err != nil {
		return err
	}
	raw, err := hex.DecodeString(t.Schema)
	if err != nil {
		return err
	}
	s, rest, err := wire.ParseSchema(raw)
	switch {
	case err != nil:
		return err
	case len(rest) > 0 || s.Name != t.Name || s.ID == 0 || hex.EncodeToString(raw) != t.Schema:
		return fmt.Errorf("its schema is that of table %q with id %#x and %d bytes more", s.Name, uint64(s.ID), len(rest))
	case len(m.Tables) > 0 && s.ID <= m.Tables[len(m.Tables)-1].Schema.ID:
		return fmt.Errorf("tables are not in ascending order")
	case slices.ContainsFunc(m.Tables, func(o TableSum) bool { return o.Schema.Name == s.Name }):
		return fmt.Errorf("two tables have this name")
	}
	written, err := m.written(t.Written, t.Rows)
	m.Tables = append(m.Tables, TableSum{Schema: s, Rows: t.Rows, Digest: digest, Written: written})
	return err
}

func (m *Manifest) addShard(p shardFileJSON) error {
	if int(p.Shard) != len(m.Shards) || len(m.Shards) >= clustermap.ShardLimit(m.Slots) {
		return fmt.Errorf("stands at place %d", len(m.Shards))
	}
	out := ShardFile{Shard: rowraft.ShardID(p.Shard), Applied: rowraft.Index(p.Applied), Rows: p.Rows}
	var err error
	if out.Written, err = m.written(p.Written, p.Rows); err != nil {
		return err
	}
	if out.Digest, err = parseDigest(p.Digest); err != nil {
		return err
	}
	if out.Slots, err = parseSlots(p.Slots, m.Slots); err != nil {
		return err
	}
	if out.Stream, err = p.Stream.file(); err != nil {
		return err
	}
	if out.Sums, err = p.Sums.file(); err != nil {
		return err
	}
	m.Shards = append(m.Shards, out)
	slots := 0 // of all shard files; each names up to 65,536 slots in a few bytes
	for _, p := range m.Shards {
		slots += len(p.Slots)
	}
	if slots > int(m.Slots) {
		return fmt.Errorf("with it the shard files hold %d slots of %d", slots, m.Slots)
	}
	return nil
}

// written is how many of rows a delta has; it has a number of its own.
func (m *Manifest) written(n *uint64, rows uint64) (uint64, error) {
	switch {
	case m.Parent == nil && n == nil:
		return rows, nil
	case m.Parent == nil || n == nil || *n > rows:
		return 0, fmt.Errorf("of its %d rows an impossible number is written", rows)
	}
	return *n, nil
}

// checkSums compares what occurs twice, and that each slot occurs once.
func (m *Manifest) checkSums() error {
	held := make([]bool, m.Slots)
	var rows, tableRows, tableWritten uint64
	var sum, tableSum Digest
	slots := 0
	names := map[string]bool{ManifestFile: true}
	for _, f := range m.Files() {
		if names[f.Name] {
			return fmt.Errorf("two files are called %q", f.Name)
		}
		names[f.Name] = true
	}
	for _, p := range m.Shards {
		for _, s := range p.Slots {
			if held[s] {
				return fmt.Errorf("slot %d is in two shard files", s)
			}
			held[s] = true
			slots++
		}
		rows += p.Rows
		sum = sum.Add(p.Digest)
	}
	for _, t := range m.Tables {
		tableRows += t.Rows
		tableWritten += t.Written
		tableSum = tableSum.Add(t.Digest)
	}
	if slots != int(m.Slots) {
		return fmt.Errorf("its shard files hold %d slots of %d", slots, m.Slots)
	}
	if rows != tableRows || sum != tableSum || m.Written() != tableWritten {
		return fmt.Errorf("its shard files hold %d rows (digest %x) and have %d, its tables %d (digest %x) and %d", rows, sum,
			m.Written(), tableRows, tableSum, tableWritten)
	}
	return nil
}

var fileName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,63}$`)

func (j fileJSON) file() (File, error) {
	f := File{Name: j.Name, Bytes: j.Bytes}
	raw, err := hex.DecodeString(j.SHA256)
	if err != nil || len(raw) != len(f.SHA256) || hex.EncodeToString(raw) != j.SHA256 {
		return f, fmt.Errorf("file %q: %q is no SHA-256", j.Name, j.SHA256)
	}
	if !fileName.MatchString(j.Name) || j.Bytes < 0 {
		return f, fmt.Errorf("file %q of %d bytes is impossible", j.Name, j.Bytes)
	}
	f.SHA256 = [32]byte(raw)
	return f, nil
}

func parseDigest(s string) (d Digest, err error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(d) || hex.EncodeToString(raw) != s {
		return d, fmt.Errorf("%q is no digest", s)
	}
	return Digest(raw), nil
}

// formatSlots writes ascending slots as ranges: "0-1023,2048".
func formatSlots(slots []rowraft.Slot) string {
	var b []byte
	for i := 0; i < len(slots); {
		j := i
		for j+1 < len(slots) && slots[j+1] == slots[j]+1 {
			j++
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(slots[i]), 10)
		if j > i {
			b = strconv.AppendUint(append(b, '-'), uint64(slots[j]), 10)
		}
		i = j + 1
	}
	return string(b)
}

// parseSlots accepts exactly the texts that formatSlots writes, for slots below n.
func parseSlots(s string, n rowraft.SlotCount) ([]rowraft.Slot, error) {
	var out []rowraft.Slot
	for word := range strings.SplitSeq(s, ",") {
		if s == "" {
			break
		}
		low, high, ranged := strings.Cut(word, "-")
		if !ranged {
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err1 != nil || err2 != nil || from > to || to >= uint64(n) {
			return nil, fmt.Errorf("%q is no list of slots", s)
		}
		out = slices.Grow(out, int(to-from)+1)
		for slot := from; slot <= to; slot++ {
			if len(out) > 0 && rowraft.Slot(slot) <= out[len(out)-1] {
				return nil, fmt.Errorf("slots %q are not in ascending order", s)
			}
			out = append(out, rowraft.Slot(slot))
		}
	}
	if formatSlots(out) != s {
		return nil, fmt.Errorf("%q is no list of slots in its shortest form", s)
	}
	return out, nil
}
