package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer"
)

// processName returns the name of the worker in a process of this host. Containers may share the name of the host, and
// another host may have it: on Linux the name also has a hash of the boot and the PID namespace.
func processName(pid int) string {
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return fmt.Sprintf("%s-%08x-pid%d", host, crc32.ChecksumIEEE(append(boot, namespace...)), pid)
}

// endedHere reports whether a worker has the name of a process of this host that has ended.
func endedHere(worker string) bool {
	pid, err := strconv.Atoi(worker[strings.LastIndexByte(worker, 'd')+1:])
	if err != nil || worker != processName(pid) {
		return false
	}
	p, err := os.FindProcess(pid)
	return err != nil || errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// nameWorker names a worker without name and rank after its process. It takes workers of this host out of the job
// whose processes have ended, so that a worker that is started again gets its place at once. If the job was done a
// moment ago without such a worker, this process is taken for its restart, and gets its name.
func (o *options) nameWorker(ctx context.Context, cfg *trainer.Config, c *client.Client) error {
	if o.worker != "" || cfg.Rank != nil {
		return nil
	}
	if err := cfg.CheckData(); err != nil { // it may take minutes, in which the job may end
		return err
	}
	o.worker = processName(os.Getpid())
	ctx, cancel := context.WithTimeout(ctx, cfg.Patience)
	defer cancel()
	without, err := jobs.ReportEnded(ctx, c, cfg.Job, endedHere)
	if without != "" {
		o.worker = without
	}
	return err
}
