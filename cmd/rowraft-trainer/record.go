package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/runs"
)

// defaultRuns is the folder of runs of the commands that read one, and of sweep.
const defaultRuns = "rowraft-runs"

// recording is the record of a run that this process writes, nil if it writes none.
type recording struct {
	*runs.Recorder
	dir   string
	ended bool
}

// isRecorded reports whether a run of cfg has a record: its job has a folder of runs, and it trains.
func (o *options) isRecorded(cfg *trainer.Config) bool { return cfg.Runs != "" && !o.mustExist }

// record begins the record of a run of cfg, after the worker has entered its job; nil if the job has no folder of
// runs. head is that of headOf.
func (o *options) record(cfg *trainer.Config, head runs.Head) (*recording, error) {
	if !o.isRecorded(cfg) {
		return nil, nil
	}
	head.Job, head.Trainers, head.Worker = cfg.Job, cfg.Trainers, o.worker
	if cfg.Rank != nil {
		head.Rank = *cfg.Rank
	}
	if id := trainer.RunID(cfg); id != "" { // equal for all trainers of the run
		head.Run = runs.Name(cfg.Job, id)
	}
	r, err := runs.Begin(cfg.Runs, head, func(err error) { fmt.Fprintln(o.notes, err) })
	if err != nil {
		return nil, cli.Usagef("--runs %s: %w", cfg.Runs, err)
	}
	return &recording{Recorder: r, dir: cfg.Runs}, nil
}

// observe records an event.
func (r *recording) observe(e report.Event) {
	if r != nil {
		r.Observe(e)
	}
}

// end records the end of the run, and writes its page. Later calls do nothing.
func (r *recording) end(ctx context.Context, result *report.Result, failure error, o *options) {
	if r == nil || r.ended {
		return
	}
	r.ended = true
	if failure != nil && ctx.Err() != nil { // a signal
		failure = ctx.Err()
	}
	r.End(result, failure)
	o.recorded = r.Run()
	page := filepath.Join(r.dir, r.Run(), runs.PageName)
	run, err := runs.Open(r.dir, r.Run())
	if err == nil {
		err = runs.SavePage(page, []*runs.Run{run})
	}
	if err != nil {
		fmt.Fprintf(o.notes, "the page of run %s was not written: %v\n", r.Run(), err)
	} else if !o.quiet {
		fmt.Fprintf(o.notes, "run %s: %s\n", r.Run(), page)
	}
}

// headOf returns the settings and the fingerprint of a job, before the worker has entered it.
func (o *options) headOf(cfg *trainer.Config) (runs.Head, error) {
	h := runs.Head{Binary: version, Local: o.local, Settings: make(map[string]any)}
	text, err := yaml.Marshal(cfg)
	if err == nil {
		err = yaml.Unmarshal(text, &h.Settings)
	}
	if err != nil {
		return h, err
	}
	all, err := parseSettings(o.set)
	if err != nil {
		return h, err
	}
	for _, s := range all {
		if h.Set == nil {
			h.Set = make(map[string]string)
		}
		h.Set[s.name] = s.value
	}
	h.Fingerprint, err = fingerprint(&h, cfg)
	return h, err
}

// fingerprint returns a hash of what decides the result of a run: its settings, the schema, and name, size and time
// of its data files. The name of the job, the cluster's addresses and what is only written do not count.
func fingerprint(h *runs.Head, cfg *trainer.Config) (string, error) {
	settings := make(map[string]any, len(h.Settings))
	for name, v := range h.Settings {
		switch name {
		case "job", "endpoints", "rank", "runs", "tensorboard":
		default:
			settings[name] = v
		}
	}
	files := []any{}
	d := &cfg.Data
	for _, pattern := range slices.Concat([]string{d.Images, d.Labels, d.HeldImages, d.HeldLabels}, d.File,
		cfg.Validation) {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if st, err := os.Stat(name); err == nil {
				files = append(files, []any{name, st.Size(), st.ModTime().UnixNano()})
			}
		}
	}
	schema, _ := os.ReadFile(d.Schema) // Validate has read it
	text, err := json.Marshal([]any{settings, h.Local, files, string(schema)})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6]), err
}
