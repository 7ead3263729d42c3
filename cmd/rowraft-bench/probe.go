package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// probeDisk appends 4 KiB to a file and calls fdatasync, every probeEvery, until in ends. Then it writes a line for
// each call to out: when it began, in Unix ns, and how long it took, in ns.
func probeDisk(name string, in io.Reader, out io.Writer) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	var calls [][2]int64
	t := time.NewTicker(probeEvery)
	defer t.Stop()
	for block := make([]byte, 4<<10); ; {
		select {
		case <-t.C:
		case <-ended:
			w := bufio.NewWriter(out)
			for _, c := range calls {
				fmt.Fprintln(w, c[0], c[1])
			}
			return w.Flush()
		}
		if _, err := f.Write(block); err != nil {
			return err
		}
		begun := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		calls = append(calls, [2]int64{begun.UnixNano(), int64(time.Since(begun))})
	}
}
