package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of the messages Event, Summary, Summary.Value and SessionLog.
const (
	eventWallTime    = 1
	eventStep        = 2
	eventFileVersion = 3
	eventSummary     = 5
	eventSessionLog  = 7

	summaryValue = 1

	valueTag    = 1
	valueSimple = 2

	sessionStatus = 1
	sessionStart  = 1 // of the enum SessionStatus
)

// fileVersion is the content of the first event of a file.
const fileVersion = "brain.Event:2"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Scalar is one number of a step, under its name.
type Scalar struct {
	Tag   string
	Value float64 // kept as float32
}

// Writer appends events to one file.
type Writer struct {
	file *os.File
	buf  []byte
	err  error // the first; nothing is written after it
}

// Create creates the folder dir and a new event file in it. TensorBoard then ignores the points of earlier runs
// from step first on.
func Create(dir string, first int64, now time.Time) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	// TensorBoard reads files in the order of their names, so the name begins with the time.
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), now.Nanosecond())
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{file: f}
	w.buf = appendRecord(w.buf, versionEvent(now))
	w.buf = appendRecord(w.buf, startEvent(now, first))
	if err := w.flush(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// Write appends the scalars of a step, in one write. It omits those that are not finite. After an error it does
// nothing but return it.
func (w *Writer) Write(now time.Time, step int64, scalars ...Scalar) error {
	w.buf = appendRecord(w.buf[:0], scalarEvent(now, step, scalars))
	return w.flush()
}

func (w *Writer) flush() error {
	if w.err == nil {
		_, w.err = w.file.Write(w.buf)
	}
	return w.err
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// appendRecord appends a record with its checksums.
func appendRecord(b, data []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, masked(b[at:]))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, masked(data))
}

// masked returns the CRC-32C of b, rotated and shifted, because a CRC over data that contains CRCs is weak.
func masked(b []byte) uint32 {
	crc := crc32.Checksum(b, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}

func appendTime(b []byte, now time.Time) []byte {
	b = protowire.AppendTag(b, eventWallTime, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(float64(now.UnixNano())/1e9))
}

func appendStep(b []byte, step int64) []byte {
	b = protowire.AppendTag(b, eventStep, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(step))
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendBytes(b, v)
}

func versionEvent(now time.Time) []byte {
	return appendBytes(appendTime(nil, now), eventFileVersion, []byte(fileVersion))
}

func startEvent(now time.Time, first int64) []byte {
	log := protowire.AppendTag(nil, sessionStatus, protowire.VarintType)
	log = protowire.AppendVarint(log, sessionStart)
	return appendBytes(appendStep(appendTime(nil, now), first), eventSessionLog, log)
}

func scalarEvent(now time.Time, step int64, scalars []Scalar) []byte {
	var summary []byte
	for _, s := range scalars {
		v := float32(s.Value)
		if v-v != 0 {
			continue
		}
		value := appendBytes(nil, valueTag, []byte(s.Tag))
		value = protowire.AppendTag(value, valueSimple, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(v))
		summary = appendBytes(summary, summaryValue, value)
	}
	return appendBytes(appendStep(appendTime(nil, now), step), eventSummary, summary)
}
