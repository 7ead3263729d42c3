package checkpoint

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/rowraft/rowraft"
)

// SplitsVersion is the newest format of [Splits] that this binary writes and reads.
const SplitsVersion = 1

const (
	splitsMagic  = "ROWPARTS"
	splitsHeader = 80
	maxSplitsJob = 128
	maxSplits    = 1 << 20
	maxExamples  = 1 << 48
)

// Splits is how far a job has read data that the scheduler divides: examples that are
// numbered, in splits, epoch after epoch (docs/formats/job-splits.md).
type Splits struct {
	Job                     string
	Examples, SplitExamples uint64 // of an epoch, of a split
	Epochs                  uint64 // 0: no end
	Epoch, Split            uint64 // the next split that no worker has begun
	AgainKnown, AgainMost   uint64 // examples that were read again: at least, at most
	Open                    []OpenSplit
}

// OpenSplit is a split that was begun and not read to its end.
type OpenSplit struct {
	Epoch, Split uint64
	Offset       uint64 // of its examples trained
}

// SplitsBlob is the name of a job's position among the blobs of a checkpoint.
func SplitsBlob(job string) string { return "job/" + job }

// Encode returns the bytes of p. What the format has no room for is CodeInvalidArgument.
func (p *Splits) Encode() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "position in the data: %w", err)
	}
	le := binary.LittleEndian
	b := le.AppendUint16([]byte(splitsMagic), SplitsVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, uint32(len(p.Open)))
	for _, n := range []uint64{p.Examples, p.SplitExamples, p.Epochs, p.Epoch, p.Split, p.AgainKnown, p.AgainMost} {
		b = le.AppendUint64(b, n)
	}
	b = le.AppendUint32(b, uint32(len(p.Job)))
	b = le.AppendUint32(b, 0)
	b = append(b, p.Job...)
	for _, o := range p.Open {
		b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, o.Epoch), o.Split), o.Offset)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// DecodeSplits is the inverse of Encode. Errors: CodeCorrupt, CodeVersionTooNew.
func DecodeSplits(b []byte) (*Splits, error) {
	bad := func(format string, args ...any) (*Splits, error) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "position in the data: "+format, args...)
	}
	le := binary.LittleEndian
	if len(b) < 10 || string(b[:8]) != splitsMagic {
		return bad("it does not begin as one")
	}
	if v := le.Uint16(b[8:]); v > SplitsVersion {
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "position in the data: format %d, this binary knows %d", v,
			SplitsVersion)
	} else if v == 0 {
		return bad("format 0")
	}
	if len(b) < splitsHeader+4 {
		return bad("it ends too early")
	}
	open, name := le.Uint32(b[12:]), le.Uint32(b[72:])
	if open > maxSplits || name > maxSplitsJob || le.Uint16(b[10:]) != 0 || le.Uint32(b[76:]) != 0 ||
		len(b) != splitsHeader+int(name)+24*int(open)+4 {
		return bad("%d open splits and a name of %d bytes in %d bytes", open, name, len(b))
	}
	if got, want := le.Uint32(b[len(b)-4:]), crc32.Checksum(b[:len(b)-4], castagnoli); got != want {
		return bad("checksum %08x, want %08x", got, want)
	}
	p := &Splits{Job: string(b[splitsHeader : splitsHeader+name])}
	for i, n := range []*uint64{&p.Examples, &p.SplitExamples, &p.Epochs, &p.Epoch, &p.Split, &p.AgainKnown,
		&p.AgainMost} {
		*n = le.Uint64(b[16+8*i:])
	}
	for at := b[splitsHeader+int(name) : len(b)-4]; len(at) > 0; at = at[24:] {
		p.Open = append(p.Open, OpenSplit{le.Uint64(at), le.Uint64(at[8:]), le.Uint64(at[16:])})
	}
	if err := p.check(); err != nil {
		return bad("%w", err)
	}
	return p, nil
}

// check reports the first thing that the page does not allow.
func (p *Splits) check() error {
	if p.Job == "" || len(p.Job) > maxSplitsJob || len(p.Open) > maxSplits {
		return fmt.Errorf("a job's name of %d bytes, %d open splits", len(p.Job), len(p.Open))
	}
	if p.Examples < 1 || p.Examples > maxExamples || p.SplitExamples < 1 || p.SplitExamples > maxExamples ||
		p.Epochs > maxExamples || p.AgainKnown > p.AgainMost {
		return fmt.Errorf(
			"%d examples in splits of %d, %d epochs, %d to %d read again",
			p.Examples,
			p.SplitExamples,
			p.Epochs,
			p.AgainKnown,
			p.AgainMost,
		)
	}
	splits := (p.Examples + p.SplitExamples - 1) / p.SplitExamples
	if splits > maxSplits || p.Split >= splits ||
		p.Epochs > 0 && (p.Epoch > p.Epochs || p.Epoch == p.Epochs && p.Split > 0) {
		return fmt.Errorf("split %d of epoch %d is next, of %d splits and %d epochs", p.Split, p.Epoch, splits, p.Epochs)
	}
	before := func(a, b OpenSplit) bool { return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Split < b.Split }
	for i, o := range p.Open {
		if o.Split >= splits || !before(o, OpenSplit{Epoch: p.Epoch, Split: p.Split}) || i > 0 && !before(p.Open[i-1], o) ||
			o.Offset > min(p.SplitExamples, p.Examples-o.Split*p.SplitExamples) {
			return fmt.Errorf("split %d of epoch %d is open, read up to %d", o.Split, o.Epoch, o.Offset)
		}
	}
	return nil
}
