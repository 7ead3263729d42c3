//go:build !linux

package vfs

import "os"

func dataSync(f *os.File) error { return f.Sync() }
