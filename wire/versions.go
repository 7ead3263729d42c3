package wire

import (
	"slices"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// Version is one version of the formats of a cluster: of the entries of shards and
// of the scheduler, and of the files that one server writes and another one reads.
//
// A cluster uses the lowest version that all of its servers understand, and only
// raises it (docs/formats/versions.md). A change of a format after the first release
// is one entry of the list: the encoder of what is new sets this version, and the
// gates (node, scheduler) keep it out of every log until the cluster is at it.
type Version struct {
	Number rowraft.FormatVersion
	Name   string
	Change string // one sentence
}

// FirstVersion is what every binary understands.
const FirstVersion rowraft.FormatVersion = 1

// released lists the versions, ascending without a gap. None is ever removed.
var released = []Version{
	{FirstVersion, "first", "The formats of the first release, as docs/formats describes them."},
}

// invented counts the versions that InventVersion added.
var invented atomic.Int32

// Versions returns the versions that this binary understands, ascending.
func Versions() []Version {
	list := slices.Clone(released)
	for range invented.Load() {
		list = append(list, Version{list[len(list)-1].Number + 1, "invented", "A test invented this version."})
	}
	return list
}

// NewestVersion returns the newest version that this binary understands.
func NewestVersion() rowraft.FormatVersion {
	return released[len(released)-1].Number + rowraft.FormatVersion(invented.Load())
}

// InventVersion adds a version to the list until forget is called. It is for tests
// of upgrades alone: the process understands one version more, which changes nothing.
func InventVersion() (newest rowraft.FormatVersion, forget func()) {
	invented.Add(1)
	return NewestVersion(), func() { invented.Add(-1) }
}
