package tablefile

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rowraft/rowraft"
)

// Format is the name of a file format.
type Format string

const (
	SafeTensors Format = "safetensors" // one file with two tensors
	NPY         Format = "npy"         // NAME.npy, the vectors, and NAME.ids.npy
	Parquet     Format = "parquet"     // one file with two columns
)

// Formats returns all formats. Each is also the file extension of its format.
func Formats() []Format { return []Format{SafeTensors, NPY, Parquet} }

// FormatOf returns format, or the format of the extension of path if format is empty.
func FormatOf(path string, format Format) (Format, error) {
	if format == "" {
		format = Format(strings.ToLower(strings.TrimPrefix(filepath.Ext(path), ".")))
		if format == "pq" {
			format = Parquet
		}
	}
	for _, f := range Formats() {
		if f == format {
			return f, nil
		}
	}
	return "", rowraft.Errorf(rowraft.CodeInvalidArgument,
		"file %s: format %q: want one of %v, as the extension or by name", path, format, Formats())
}

// idsPath returns the path of the ids that belong to the vectors at path: user.ids.npy for user.npy.
func idsPath(path string) string {
	if ext := filepath.Ext(path); strings.EqualFold(ext, ".npy") {
		return strings.TrimSuffix(path, ext) + ".ids.npy"
	}
	return path + ".ids.npy"
}

// Meta is the metadata of a table in a file, if the format supports it; .npy does not. Zero fields are unknown.
type Meta struct {
	Table       string
	TableID     rowraft.TableID
	Kind        rowraft.TableKind
	Dim         int
	Initializer rowraft.Initializer
	Source      string // description of the cluster or the checkpoint
}

// MetaOf returns the part of Meta that a schema determines.
func MetaOf(s rowraft.Schema, source string) Meta {
	return Meta{Table: s.Name, TableID: s.ID, Kind: s.Kind, Dim: s.Dim, Initializer: s.Initializer, Source: source}
}

// Names of metadata; values are strings in every format.
const (
	metaVersion = "rowraft.version" // version of these names
	metaTable   = "rowraft.table"
	metaTableID = "rowraft.table_id"
	metaKind    = "rowraft.kind"
	metaDim     = "rowraft.dim"
	metaInit    = "rowraft.initializer"
	metaSeed    = "rowraft.seed"
	metaSource  = "rowraft.source"
)

// strings returns the metadata by name.
func (m Meta) strings() map[string]string {
	out := map[string]string{
		metaVersion: "1",
		metaTable:   m.Table,
		metaTableID: strconv.FormatUint(uint64(m.TableID), 10),
		metaKind:    m.Kind.String(),
		metaDim:     strconv.Itoa(m.Dim),
		metaSource:  m.Source,
	}
	switch i := m.Initializer; i.Kind {
	case rowraft.InitUniform, rowraft.InitNormal:
		out[metaInit] = fmt.Sprintf("%s %v %v", i.Kind, i.A, i.B)
		out[metaSeed] = strconv.FormatUint(i.Seed, 10)
	case rowraft.InitZeros:
		out[metaInit] = i.Kind.String()
	}
	return out
}

// metaFrom returns the metadata that a reader uses; the rest is for people.
func metaFrom(get func(name string) string) Meta {
	m := Meta{Table: get(metaTable), Source: get(metaSource)}
	if id, err := strconv.ParseUint(get(metaTableID), 10, 64); err == nil {
		m.TableID = rowraft.TableID(id)
	}
	if dim, err := strconv.Atoi(get(metaDim)); err == nil && dim > 0 && dim <= rowraft.MaxDim {
		m.Dim = dim
	}
	return m
}

// checkDim returns an error for a width that no table can have.
func checkDim(dim uint64) (int, error) {
	if dim < 1 || dim > rowraft.MaxDim {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "vectors of %d numbers: want 1 to %d", dim, rowraft.MaxDim)
	}
	return int(dim), nil
}

func corruptf(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, format, args...)
}

func invalidf(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
