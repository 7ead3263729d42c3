package snapstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
)

// The payload of a snapshot begins with a header: stateMagic and the AppliedIndex of the machine. The index comes from
// the data, not from the name of a directory (rqlite #2747).
const (
	stateMagic       = "rowraftS"
	stateHeaderBytes = 16
)

// WriteStateHeader writes the header for the state of a machine at applied.
func WriteStateHeader(w io.Writer, applied rowraft.Index) error {
	_, err := w.Write(binary.LittleEndian.AppendUint64([]byte(stateMagic), uint64(applied)))
	return err
}

// ReadStateHeader reads the header of snapshot id and returns the machine's applied index. What follows is the state.
func ReadStateHeader(r io.Reader, id string) (applied rowraft.Index, err error) {
	var header [stateHeaderBytes]byte
	if _, err := io.ReadFull(r, header[:]); err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s is shorter than the header of %d bytes", id,
			stateHeaderBytes)
	} else if err != nil {
		return 0, fmt.Errorf("read the header of snapshot %s: %w", id, err)
	}
	if string(header[:8]) != stateMagic {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s begins with %q, want %q", id, header[:8], stateMagic)
	}
	return rowraft.Index(binary.LittleEndian.Uint64(header[8:])), nil
}
