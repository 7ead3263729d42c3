package torch

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

//go:embed common.py
var common string

// Run runs a script behind common.py, on the files in dir. It writes description to dir first, as JSON, where the
// examples need "dense" and "features", the numbers of each.
func Run(python, script, dir string, description any, stdout, stderr io.Writer) error {
	cmd, err := command(python, script, dir, description)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s, the script: %w", python, err)
	}
	return nil
}

// Start is Run in the background, until the script ends: the caller writes to its standard input and reads its output.
func Start(python, script, dir string, description any, stderr io.Writer) (io.WriteCloser, io.Reader, error) {
	cmd, err := command(python, script, dir, description)
	if err != nil {
		return nil, nil, err
	}
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return in, out, cmd.Start()
}

func command(python, script, dir string, description any) (*exec.Cmd, error) {
	text, err := json.Marshal(description)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "description.json"), text, 0o600); err != nil {
		return nil, err
	}
	return exec.Command(python, "-c", common+"\n\n"+script, dir), nil
}

// Write writes a slice of numbers to a file in dir, little-endian.
func Write(dir, name string, numbers any) error {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, numbers); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600)
}

// WriteExamples writes labels, dense features and keys of the training and the held-out examples to dir, and all keys,
// which it returns, ascending.
func WriteExamples(dir string, set data.Set) ([]rowraft.Key, error) {
	all := make(map[rowraft.Key]bool)
	for name, open := range map[string]func() (data.Source, error){
		"train": func() (data.Source, error) { return set.Train(0, 0, 1) }, "held": set.Held,
	} {
		src, err := open()
		if err != nil {
			return nil, err
		}
		var labels, dense []float32
		var keys []rowraft.Key
		s := set.Shape()
		for b := data.NewBatch(4096, s); ; {
			if err := src.Next(b); err == io.EOF {
				break
			} else if err != nil {
				return nil, errors.Join(err, src.Close())
			}
			labels = append(labels, b.Labels[:b.N]...)
			dense = append(dense, b.Dense[:b.N*s.Dense]...)
			keys = append(keys, b.Keys[:b.N*s.Categorical]...)
		}
		for _, k := range keys {
			all[k] = true
		}
		err = errors.Join(src.Close(), Write(dir, name+".labels", labels), Write(dir, name+".dense", dense),
			Write(dir, name+".keys", keys))
		if err != nil {
			return nil, err
		}
	}
	keys := slices.Sorted(maps.Keys(all))
	return keys, Write(dir, "keys", keys)
}
