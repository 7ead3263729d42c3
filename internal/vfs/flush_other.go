//go:build !linux

package vfs

import (
	"errors"
	"os"
)

func flush(*os.File, int64, int64, bool) error { return errors.ErrUnsupported }
