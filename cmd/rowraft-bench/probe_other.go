//go:build !linux

package main

import (
	"errors"
	"io"
)

func probeDisk(string, io.Reader, io.Writer) error {
	return errors.New("the probe needs fdatasync of Linux")
}
