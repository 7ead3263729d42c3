package checkpoint

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/rowraft/rowraft"
)

// PartsVersion is the newest format of [Parts] that this binary writes and reads.
const PartsVersion = 1

const (
	partsMagic  = "ROWPARTS"
	partsHeader = 80
	maxPartsJob = 128
	maxParts    = 1 << 20
	maxExamples = 1 << 48
)

// Parts is how far a job has read data that the scheduler divides: examples that are
// numbered, in parts, epoch after epoch (docs/formats/job-parts.md).
type Parts struct {
	Job                    string
	Examples, PartExamples uint64 // of an epoch, of a part
	Epochs                 uint64 // 0: no end
	Epoch, Part            uint64 // the next part that no worker has begun
	AgainKnown, AgainMost  uint64 // examples that were read again: at least, at most
	Open                   []OpenPart
}

// OpenPart is a part that was begun and not read to its end.
type OpenPart struct {
	Epoch, Part uint64
	Offset      uint64 // of its examples trained
}

// PartsBlob is the name of a job's position among the blobs of a checkpoint.
func PartsBlob(job string) string { return "job/" + job }

// Encode returns the bytes of p. What the format has no room for is CodeInvalidArgument.
func (p *Parts) Encode() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "position in the data: %w", err)
	}
	le := binary.LittleEndian
	b := le.AppendUint16([]byte(partsMagic), PartsVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, uint32(len(p.Open)))
	for _, n := range []uint64{p.Examples, p.PartExamples, p.Epochs, p.Epoch, p.Part, p.AgainKnown, p.AgainMost} {
		b = le.AppendUint64(b, n)
	}
	b = le.AppendUint32(b, uint32(len(p.Job)))
	b = le.AppendUint32(b, 0)
	b = append(b, p.Job...)
	for _, o := range p.Open {
		b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, o.Epoch), o.Part), o.Offset)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// DecodeParts is the inverse of Encode. Errors: CodeCorrupt, CodeVersionTooNew.
func DecodeParts(b []byte) (*Parts, error) {
	bad := func(format string, args ...any) (*Parts, error) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "position in the data: "+format, args...)
	}
	le := binary.LittleEndian
	if len(b) < 10 || string(b[:8]) != partsMagic {
		return bad("it does not begin as one")
	}
	if v := le.Uint16(b[8:]); v > PartsVersion {
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "position in the data: format %d, this binary knows %d", v,
			PartsVersion)
	} else if v == 0 {
		return bad("format 0")
	}
	if len(b) < partsHeader+4 {
		return bad("it ends too early")
	}
	open, name := le.Uint32(b[12:]), le.Uint32(b[72:])
	if open > maxParts || name > maxPartsJob || le.Uint16(b[10:]) != 0 || le.Uint32(b[76:]) != 0 ||
		len(b) != partsHeader+int(name)+24*int(open)+4 {
		return bad("%d open parts and a name of %d bytes in %d bytes", open, name, len(b))
	}
	if got, want := le.Uint32(b[len(b)-4:]), crc32.Checksum(b[:len(b)-4], castagnoli); got != want {
		return bad("checksum %08x, want %08x", got, want)
	}
	p := &Parts{Job: string(b[partsHeader : partsHeader+name])}
	for i, n := range []*uint64{&p.Examples, &p.PartExamples, &p.Epochs, &p.Epoch, &p.Part, &p.AgainKnown, &p.AgainMost} {
		*n = le.Uint64(b[16+8*i:])
	}
	for at := b[partsHeader+int(name) : len(b)-4]; len(at) > 0; at = at[24:] {
		p.Open = append(p.Open, OpenPart{le.Uint64(at), le.Uint64(at[8:]), le.Uint64(at[16:])})
	}
	if err := p.check(); err != nil {
		return bad("%w", err)
	}
	return p, nil
}

// check reports the first thing that the page does not allow.
func (p *Parts) check() error {
	if p.Job == "" || len(p.Job) > maxPartsJob || len(p.Open) > maxParts {
		return fmt.Errorf("a job's name of %d bytes, %d open parts", len(p.Job), len(p.Open))
	}
	if p.Examples < 1 || p.Examples > maxExamples || p.PartExamples < 1 || p.PartExamples > maxExamples ||
		p.Epochs > maxExamples || p.AgainKnown > p.AgainMost {
		return fmt.Errorf("%d examples in parts of %d, %d epochs, %d to %d read again", p.Examples, p.PartExamples, p.Epochs,
			p.AgainKnown, p.AgainMost)
	}
	parts := (p.Examples + p.PartExamples - 1) / p.PartExamples
	if parts > maxParts || p.Part >= parts || p.Epochs > 0 && (p.Epoch > p.Epochs || p.Epoch == p.Epochs && p.Part > 0) {
		return fmt.Errorf("part %d of epoch %d is next, of %d parts and %d epochs", p.Part, p.Epoch, parts, p.Epochs)
	}
	before := func(a, b OpenPart) bool { return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Part < b.Part }
	for i, o := range p.Open {
		if o.Part >= parts || !before(o, OpenPart{Epoch: p.Epoch, Part: p.Part}) || i > 0 && !before(p.Open[i-1], o) ||
			o.Offset > min(p.PartExamples, p.Examples-o.Part*p.PartExamples) {
			return fmt.Errorf("part %d of epoch %d is open, read up to %d", o.Part, o.Epoch, o.Offset)
		}
	}
	return nil
}
