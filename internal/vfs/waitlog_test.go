package vfs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

func TestWaitLogIsLateAndHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := vfs.NewFaulty(vfs.NewMem())
		began := time.Now()
		f.WaitLog("/data/log")
		if d := time.Since(began); d != 0 {
			t.Errorf("a good disk is %v late", d)
		}
		if err := f.Set(vfs.DiskFault{Name: "slow", Ops: []vfs.Op{vfs.OpLog}, Delay: time.Second}); err != nil {
			t.Fatal(err)
		}
		f.WaitLog("/data/log")
		if d := time.Since(began); d != time.Second || f.Done()["slow"] != 1 {
			t.Errorf("%v late, %d writes", d, f.Done()["slow"])
		}
		if err := f.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpLog}, Hang: true}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, f.Clear)
		f.WaitLog("/data/log")
		if d := time.Since(began); d != time.Second+time.Hour {
			t.Errorf("it hung until %v", d)
		}
	})
}
