package localcluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/rowraft/rowraft/internal/cli"
)

// Trainers are the trainer processes on this machine. Their events arrive on Events, which is closed when
// all have ended.
type Trainers struct {
	Events chan TrainerEvent
	procs  []*trainerProc
}

type trainerProc struct {
	rank   int
	cmd    *exec.Cmd
	result string // path of its JSON result
	log    string

	errs []error // set when the process has ended
}

// StartTrainers runs `rowraft-trainer train` n times, each with the job file of its rank.
func StartTrainers(binary, dir string, config func(rank int) string, endpoints []string, n int) (*Trainers, error) {
	// The channel is unbuffered, so trainers with full pipes wait for the reader of events. They cannot end
	// while the reader chooses a trainer to kill.
	t := &Trainers{Events: make(chan TrainerEvent)}
	var readers sync.WaitGroup
	end := func() {
		readers.Wait()
		close(t.Events)
	}
	for rank := range n {
		p := &trainerProc{
			rank:   rank,
			result: filepath.Join(dir, fmt.Sprintf("trainer-%d.json", rank)),
			log:    filepath.Join(dir, fmt.Sprintf("trainer-%d.log", rank)),
		}
		p.cmd = exec.Command(binary, "train", "--config", config(rank), "--endpoints",
			strings.Join(endpoints, ","), "--insecure",
			"--rank", fmt.Sprint(rank), "--trainers", fmt.Sprint(n), "--progress", "json", "--json", p.result)
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		// Each trainer's model runs on one goroutine; the trainers share the cores with the servers.
		p.cmd.Env = append(cli.WithoutFlags(os.Environ()), "GOMAXPROCS=1")
		stderr, err := p.cmd.StderrPipe()
		if err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			t.Kill()
			go end()
			t.Drain(context.Background())
			return nil, fmt.Errorf("start %s: %w", binary, err)
		}
		t.procs = append(t.procs, p)
		readers.Go(func() { p.run(stderr, t.Events) })
	}
	go end()
	return t, nil
}

// run reads the process's events until it ends, and writes other lines to its log.
func (p *trainerProc) run(stderr io.Reader, events chan<- TrainerEvent) {
	log, err := os.Create(p.log)
	if err != nil {
		p.errs = append(p.errs, err)
		log = nil
	} else {
		defer log.Close()
	}
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e TrainerEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event != "" {
			e.Rank = p.rank
			events <- e
			continue
		}
		if log != nil {
			fmt.Fprintln(log, lines.Text())
		}
	}
	if err := p.cmd.Wait(); err != nil {
		p.errs = append(p.errs, fmt.Errorf("trainer %d: %w\n%s", p.rank, err, tail(p.log, 2<<10)))
	}
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}

// Kill ends all running trainers.
func (t *Trainers) Kill() {
	for _, p := range t.procs {
		_ = p.cmd.Process.Kill()
	}
}

// Err returns the errors of the trainers that failed. It must be called after Events was closed.
func (t *Trainers) Err() error {
	var errs []error
	for _, p := range t.procs {
		errs = append(errs, p.errs...)
	}
	return errors.Join(errs...)
}

// Results reads the result files of the trainers, by rank.
func (t *Trainers) Results() ([]TrainerResult, error) {
	out := make([]TrainerResult, len(t.procs))
	for i, p := range t.procs {
		b, err := os.ReadFile(p.result)
		if err != nil {
			return nil, fmt.Errorf("trainer %d: %w", p.rank, err)
		}
		if err := json.Unmarshal(b, &out[i]); err != nil {
			return nil, fmt.Errorf("trainer %d: result: %w", p.rank, err)
		}
	}
	return out, nil
}

// Drain discards the remaining events so that the readers can end.
func (t *Trainers) Drain(ctx context.Context) {
	for {
		select {
		case _, ok := <-t.Events:
			if !ok {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
