package tidy

import (
	"bytes"
	"crypto/sha256"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Fingerprints know the files of a data folder that must not be committed, and
// their rows.
type Fingerprints struct {
	files map[[32]byte]string
	rows  map[uint64]string // hash of a row → file
	seed  maphash.Seed
}

// minRow is the length from which a line is a row and no accident.
const minRow = 16

// isRow reports whether a line of a data file is worth remembering.
func isRow(line []byte) bool {
	return len(line) >= minRow && bytes.ContainsAny(line, ",\t|")
}

// ReadFingerprints reads every file below dir but documentation.
func ReadFingerprints(dir string) (*Fingerprints, error) {
	fp := &Fingerprints{files: make(map[[32]byte]string), rows: make(map[uint64]string), seed: maphash.MakeSeed()}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(p, ".md") {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fp.add(p, b)
		return nil
	})
	return fp, err
}

func (fp *Fingerprints) add(name string, content []byte) {
	fp.files[sha256.Sum256(content)] = name
	switch filepath.Ext(name) {
	case ".gz", ".json":
		return
	}
	for i, line := range bytes.Split(content, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if i > 0 && isRow(line) { // the first may be a header, which a schema may quote
			fp.rows[maphash.Bytes(fp.seed, line)] = name
		}
	}
}

// Find reports the data file that content is, or contains a row of.
func (fp *Fingerprints) Find(content []byte) (string, bool) {
	if name, ok := fp.files[sha256.Sum256(content)]; ok {
		return name, true
	}
	for line := range bytes.SplitSeq(content, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if !isRow(line) {
			continue
		}
		if name, ok := fp.rows[maphash.Bytes(fp.seed, line)]; ok {
			return "a row of " + name, true
		}
	}
	return "", false
}

// FindBelow looks at every file of the repository at root.
func (fp *Fingerprints) FindBelow(root string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if name, bad := fp.Find(b); bad {
			found = append(found, p+" is "+name)
		}
		return nil
	})
	return found, err
}
