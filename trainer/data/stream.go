package data

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.yaml.in/yaml/v3"
)

// Paths are the files of a data set: a list in YAML, or one name. A name may be a pattern of [filepath.Match].
type Paths []string

// UnmarshalYAML accepts one name in place of a list.
func (p *Paths) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*p = nil
		if n.Value != "" {
			*p = Paths{n.Value}
		}
		return nil
	}
	var list []string
	err := n.Decode(&list)
	*p = list
	return err
}

// String returns the names, separated by commas.
func (p Paths) String() string { return strings.Join(p, ", ") }

// expand returns the files that p names, those of a pattern in the order of their names.
func (p Paths) expand() (out []string, err error) {
	if len(p) == 0 {
		return nil, invalid("no data: no file of examples is given")
	}
	for _, name := range p {
		info, err := os.Stat(name)
		switch {
		case err == nil && info.IsDir():
			return nil, invalid("data: %s is a folder: want a pattern for its files, such as %s", name,
				filepath.Join(name, "*.csv"))
		case err == nil:
			out = append(out, name)
			continue
		case !strings.ContainsAny(name, "*?["):
			return nil, invalid("data: %w", err)
		}
		found, err := filepath.Glob(name)
		if err != nil {
			return nil, invalid("data: pattern %s: %w", name, err)
		}
		if len(found) == 0 {
			return nil, invalid("data: no file matches %s", name)
		}
		out = append(out, found...) // sorted
	}
	for i, name := range out {
		if slices.Contains(out[:i], name) {
			return nil, invalid("data: %s is given twice", name)
		}
	}
	return out, nil
}

// compressed reports whether openStream decompresses a file.
func compressed(path string) bool {
	return slices.Contains([]string{".gz", ".zst", ".zstd"}, filepath.Ext(path))
}

// openStream opens a file and decompresses it if its name ends in .gz, .zst or .zstd. Another file is an [io.Seeker].
func openStream(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("data: %w", err)
	}
	switch filepath.Ext(path) {
	case ".gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			f.Close()
			return nil, invalid("%s: the name ends in .gz, but it is not gzip: %w", path, err)
		}
		return decompressed{z, z.Close, f}, nil
	case ".zst", ".zstd":
		// One goroutine: a source must not outrun the loop. Frames need at most 128 MiB of history.
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			f.Close()
			return nil, invalid("%s: the name ends in %s, but it is not zstd: %w", path, filepath.Ext(path), err)
		}
		return decompressed{z, func() error { z.Close(); return nil }, f}, nil
	}
	return f, nil
}

// decompressed is a decompressor over a file.
type decompressed struct {
	io.Reader
	end  func() error
	file *os.File
}

// Close implements [io.Closer].
func (d decompressed) Close() error { return errors.Join(d.end(), d.file.Close()) }
