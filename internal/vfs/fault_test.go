package vfs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

func TestFaultHitsWhatItNames(t *testing.T) {
	write := func(d vfs.FS, name string) error {
		f, err := d.OpenFile(name, os.O_CREATE|os.O_WRONLY)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write([]byte("four"))
		return err
	}
	for _, tc := range []struct {
		name  string
		fault vfs.DiskFault
		path  string
		want  []error // the errors of three writes
	}{
		{"any path", vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Err: "EIO"}, "/a/b.seg",
			[]error{syscall.EIO, syscall.EIO, syscall.EIO}},
		{"by the end of the path", vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Path: "a/*.seg", Err: "EIO", Times: 1},
			"/a/b.seg", []error{syscall.EIO, nil, nil}},
		{"another directory", vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Path: "x/*.seg", Err: "EIO"}, "/a/b.seg",
			[]error{nil, nil, nil}},
		{"a pattern longer than the path", vfs.DiskFault{Path: "*/*/*/*", Err: "EIO"}, "/a/b.seg", []error{nil, nil, nil}},
		{"after two", vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, After: 2, Err: "ENOSPC"}, "/a/b",
			[]error{nil, nil, syscall.ENOSPC}},
		{"another operation", vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO"}, "/a/b", []error{nil, nil, nil}},
		{"no operation named: all that write", vfs.DiskFault{Err: "EIO", Times: 2}, "/a/b",
			[]error{syscall.EIO, syscall.EIO, nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := vfs.NewFaulty(vfs.NewMem())
			must(t, d.Mkdir("/a"))
			must(t, d.Set(tc.fault))
			hits := 0
			for i, want := range tc.want {
				if err := write(d, tc.path); !errors.Is(err, want) {
					t.Errorf("write %d: %v, want %v", i, err, want)
				}
				if want != nil {
					hits++
				}
			}
			done := 0
			for _, n := range d.Done() {
				done += n
			}
			if done != hits {
				t.Errorf("Done is %v, want %d in all", d.Done(), hits)
			}
		})
	}
}

func TestFullDiskWritesAPart(t *testing.T) {
	mem := vfs.NewMem()
	d := vfs.NewFaulty(mem)
	must(t, d.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite, vfs.OpFree}, Err: "ENOSPC"}))
	f, err := d.OpenFile("f", os.O_CREATE|os.O_WRONLY)
	must(t, err)
	if n, err := f.Write([]byte("four")); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if n, err := f.WriteAt([]byte("four"), 4); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if got := content(t, mem, "f"); got != "fo\x00\x00fo" {
		t.Errorf("the file has %q", got)
	}
	if free, err := d.Free("/"); free != 0 || err != nil {
		t.Errorf("Free is %d, %v", free, err)
	}
}

// TestHangEndsWithTheFault runs in virtual time, so that it can wait forever.
func TestHangEndsWithTheFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfs.NewFaulty(vfs.NewMem())
		hang := vfs.DiskFault{Name: "hang", Ops: []vfs.Op{vfs.OpSyncDir}, Hang: true}
		must(t, d.Set(hang))
		done := make(chan error, 1)
		go func() { done <- d.SyncDir("/") }()
		time.Sleep(time.Hour) //tidy:allow sleep virtual time
		must(t, d.Set(hang, vfs.DiskFault{Ops: []vfs.Op{vfs.OpMkdir}, Delay: time.Minute}))
		synctest.Wait()
		if len(done) != 0 {
			t.Fatal("the operation returned although its fault was set again")
		}
		begin := time.Now()
		must(t, d.Mkdir("/late"))
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("a delay of a minute took %v", took)
		}
		d.Clear()
		must(t, <-done)
		if d.Done()["hang"] != 1 {
			t.Errorf("Done is %v", d.Done())
		}
	})
}

func TestInvalidFaultsChangeNothing(t *testing.T) {
	d := vfs.NewFaulty(vfs.NewMem())
	must(t, d.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpMkdir}, Err: "EIO"}))
	for _, bad := range []vfs.DiskFault{
		{}, {Err: "EPERM"}, {Ops: []vfs.Op{"fly"}, Hang: true}, {Path: "[", Hang: true},
	} {
		if err := d.Set(bad); err == nil {
			t.Errorf("%+v was set", bad)
		}
	}
	if err := d.Mkdir("/a"); !errors.Is(err, syscall.EIO) {
		t.Errorf("the fault that was set before is gone: %v", err)
	}
}

func TestFaultsTravelAsJSON(t *testing.T) {
	want := vfs.DiskFault{Name: "n", Ops: []vfs.Op{vfs.OpSync}, Path: "*.seg", After: 1, Times: 2, Err: "EIO",
		Delay: time.Second, Hang: true}
	raw, err := json.Marshal(want)
	must(t, err)
	const text = `{"name":"n","ops":["sync"],"path":"*.seg","after":1,"times":2,"err":"EIO","delay_ns":1000000000,"hang":true}`
	if string(raw) != text {
		t.Errorf("%s\nwant %s", raw, text)
	}
}

// TestStepsAreNumbered: every change is a step, nothing else is one, and a hook can stop the machine before a step.
func TestStepsAreNumbered(t *testing.T) {
	script := func(d vfs.FS) error {
		if err := d.Mkdir("/d"); err != nil {
			return err
		}
		if _, err := d.Stat("/d"); err != nil {
			return err
		}
		if err := vfs.ReplaceFile(d, "/d/f.new", "/d/f", []byte("x")); err != nil {
			return err
		}
		return d.Remove("/d/f")
	}
	var got []string
	d := vfs.NewFaulty(vfs.NewMem())
	d.OnStep(func(s vfs.Step) { got = append(got, s.String()) })
	must(t, script(d))
	want := []string{
		"step 1, mkdir /d", "step 2, create /d/f.new", "step 3, write /d/f.new", "step 4, sync /d/f.new",
		"step 5, rename /d/f", "step 6, syncdir /d", "step 7, remove /d/f",
	}
	if !slices.Equal(got, want) || d.Steps() != len(want) {
		t.Errorf("%d steps: %q", d.Steps(), got)
	}
	for n := range len(want) {
		mem := vfs.NewMem()
		d := vfs.NewFaulty(mem)
		d.OnStep(func(s vfs.Step) {
			if s.N == n+1 {
				mem.Stop()
			}
		})
		if err := script(d); !errors.Is(err, vfs.ErrCrashed) {
			t.Errorf("crash before step %d: %v", n+1, err)
		}
		has := fmt.Sprint(content(t, mem.Crash(vfs.KeepUnsynced), "/d/f"))
		if want := map[bool]string{true: "x", false: "(none)"}[n >= 5]; has != want {
			t.Errorf("a crash before step %d leaves %q", n+1, has)
		}
	}
}
