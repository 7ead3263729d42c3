//go:build rowraft_faults

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// faultsEnv is the environment variable with the path of a JSON file: the list of vfs.DiskFault in force. The file is
// read again when it changes. A missing file is an empty list.
const faultsEnv = "ROWRAFT_DISK_FAULTS"

// openDisk returns the disk of a server, with the faults of the file that faultsEnv names; nil: the operating system's.
func openDisk(log *slog.Logger) (vfs.FS, error) {
	path := os.Getenv(faultsEnv)
	if path == "" {
		return nil, nil
	}
	f := &faultFile{path: path, disk: vfs.NewFaulty(vfs.OS), log: log}
	f.disk.OnDone(func(fault vfs.DiskFault, op vfs.Op, name string) {
		log.Warn("disk fault", "fault", fault.Name, "op", string(op), "path", name)
	})
	if err := f.read(); err != nil {
		return nil, err
	}
	go f.follow() // until the process ends
	return f.disk, nil
}

type faultFile struct {
	path string
	disk *vfs.Faulty
	log  *slog.Logger
	last []byte
}

func (f *faultFile) follow() {
	for range time.Tick(10 * time.Millisecond) {
		if err := f.read(); err != nil {
			f.log.Error("disk faults stay as they are", "file", f.path, "err", err)
		}
	}
}

func (f *faultFile) read() error {
	raw, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = []byte("[]"), nil
	}
	if err != nil || bytes.Equal(raw, f.last) {
		return err
	}
	f.last = raw
	var faults []vfs.DiskFault
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&faults); err != nil {
		return err
	}
	if err := f.disk.Set(faults...); err != nil {
		return err
	}
	f.log.Warn("disk faults are set", "faults", len(faults), "file", f.path)
	return nil
}
