package meta

import (
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// RequiredVersion returns the lowest version that can express m. A later version adds
// its commands and fields here.
func RequiredVersion(proto.Message) rowraft.FormatVersion { return wire.FirstVersion }

// raiseVersion applies the command. The version never goes down.
func (s *state) raiseVersion(c *rowraftv1.MetaRaiseVersion) error {
	v := c.GetFormatVersion()
	if v > 1<<15 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "format version %d: want at most %d", v, 1<<15)
	}
	if next := rowraft.FormatVersion(v); next > s.cluster.FormatVersion {
		s.cluster.FormatVersion = next
		s.cluster.Version++
	}
	return nil
}
