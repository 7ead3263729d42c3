package main

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
	"time"

	"github.com/rowraft/rowraft/internal/flagenv"
)

// trainerProcs are the trainer processes of a demo. Their events arrive on
// events, which closes when all have ended.
type trainerProcs struct {
	events chan trainerEvent
	procs  []*trainerProc
}

type trainerProc struct {
	rank   int
	cmd    *exec.Cmd
	result string // path of the JSON it writes
	log    string

	errs []error // set when the process has ended
}

// startTrainers runs `rowraft-trainer train` n times, each on its rank's job file.
func startTrainers(binary, dir string, config func(rank int) string, endpoints []string, n int) (*trainerProcs, error) {
	// No event waits in the channel: trainers whose pipes are full wait for who reads, and are not
	// done while that one asks whom to kill.
	t := &trainerProcs{events: make(chan trainerEvent)}
	var readers sync.WaitGroup
	end := func() {
		readers.Wait()
		close(t.events)
	}
	for rank := range n {
		p := &trainerProc{
			rank:   rank,
			result: filepath.Join(dir, fmt.Sprintf("trainer-%d.json", rank)),
			log:    filepath.Join(dir, fmt.Sprintf("trainer-%d.log", rank)),
		}
		p.cmd = exec.Command(binary, "train", "--config", config(rank), "--endpoints", strings.Join(endpoints, ","), "--insecure",
			"--rank", fmt.Sprint(rank), "--trainers", fmt.Sprint(n), "--progress", "json", "--json", p.result)
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		// Each trainer's model runs on one goroutine; the cores are shared with the
		// servers.
		p.cmd.Env = append(flagenv.Without(os.Environ()), "GOMAXPROCS=1")
		stderr, err := p.cmd.StderrPipe()
		if err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			t.kill()
			go end()
			t.drain(context.Background())
			return nil, fmt.Errorf("start %s: %w", binary, err)
		}
		t.procs = append(t.procs, p)
		readers.Go(func() { p.run(stderr, t.events) })
	}
	go end()
	return t, nil
}

// run reads the process's events until it ends; other lines go to its log.
func (p *trainerProc) run(stderr io.Reader, events chan<- trainerEvent) {
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
		var e trainerEvent
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

// kill ends all trainers that still run.
func (t *trainerProcs) kill() {
	for _, p := range t.procs {
		_ = p.cmd.Process.Kill()
	}
}

// err reports the trainers that failed. Call it when events has closed.
func (t *trainerProcs) err() error {
	var errs []error
	for _, p := range t.procs {
		errs = append(errs, p.errs...)
	}
	return errors.Join(errs...)
}

// results reads what the trainers wrote at their end, by rank.
func (t *trainerProcs) results() ([]trainerResult, error) {
	out := make([]trainerResult, len(t.procs))
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

// drain takes the remaining events so that the readers can end.
func (t *trainerProcs) drain(ctx context.Context) {
	for {
		select {
		case _, ok := <-t.events:
			if !ok {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// demoProgress is the sum of what the trainers said last.
type demoProgress struct {
	start    time.Time
	last     map[int]trainerEvent // by rank
	recorded []int                // ranks in the order they first spoke
}

func newDemoProgress() *demoProgress {
	return &demoProgress{start: time.Now(), last: make(map[int]trainerEvent)}
}

func (d *demoProgress) add(e trainerEvent) {
	if _, ok := d.last[e.Rank]; !ok {
		d.recorded = append(d.recorded, e.Rank)
		if len(d.recorded) == 1 {
			d.start = time.Now()
		}
	}
	if prev := d.last[e.Rank]; e.Event != eventStep { // others do not say how well it goes
		e.Loss, e.AUC = prev.Loss, prev.AUC
	}
	d.last[e.Rank] = e
}

// total is the sum over the trainers, with the mean loss and AUC.
func (d *demoProgress) total() (t trainerEvent) {
	var loss, auc float64
	n := 0
	for _, rank := range d.recorded {
		e := d.last[rank]
		t.Step += e.Step
		t.Steps += e.Steps
		t.Examples += e.Examples
		t.PushesAcknowledged += e.PushesAcknowledged
		if e.Step > 0 && e.Loss.known() && e.AUC.known() {
			loss += float64(e.Loss)
			auc += float64(e.AUC)
			n++
		}
	}
	if n > 0 {
		t.Loss, t.AUC = number(loss/float64(n)), number(auc/float64(n))
	}
	t.ExamplesPerSecond = number(float64(t.Examples) / time.Since(d.start).Seconds())
	return t
}
