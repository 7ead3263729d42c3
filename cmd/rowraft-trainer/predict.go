package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
)

// predictFlags are the flags of `predict`.
type predictFlags struct {
	out       string // file of the predictions, - for standard output
	withInput bool
	workers   int
}

func newPredict() *cobra.Command {
	f := new(predictFlags)
	o := options{mustExist: true, predict: f}
	cmd := newJobCommandOf(&o)
	cmd.Use, cmd.Short = "predict", "Write a prediction for each example of a file"
	cmd.Long = `Predict writes one line for each example of --data, in the order of the file: the predicted probability of label 1
(the number of the class, where there are more than two). The model and its weights are those of evaluate: a job
(--config), or a file that train --save-model wrote (--model). The file needs no labels: a column that the schema names
may be missing, one that it numbers may be empty. Nothing is trained, and no row is created: an unknown id has its
initial weights. --data - reads standard input, and writes the predictions of what has come after half a second.
With --from the model is a directory of export, and no cluster is needed.`
	cmd.Example = "  rowraft-trainer predict --model ctr.model --data new.csv --out scores.txt\n" +
		"  rowraft-trainer predict --config job.yaml --data new.csv.gz --endpoints 127.0.0.1:7070 --insecure\n" +
		"  zcat new.csv.gz | rowraft-trainer predict --from ctr-export --data - --with-input --workers 4"
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "-", "file of the predictions, which replaces an older one when it is complete; "+
		"- for standard output")
	fl.BoolVar(&f.withInput, "with-input", false, "write the line of each example in front of its prediction, and the "+
		"header; not for Parquet")
	fl.IntVar(&f.workers, "workers", 1, "goroutines that compute, and as many that pull rows: each has a model of its own")
	return cmd
}

// configure makes cfg a job that predicts.
func (f *predictFlags) configure(cfg *trainer.Config) {
	d := &cfg.Data
	d.Unlabelled, d.Held, d.HeldBy, d.Shuffle, d.MaxBad = true, new(float64), "", "", 0 // a line for each example
	d.KeepLines = f.withInput
	cfg.Validation = nil
	if len(d.File) == 1 && d.File[0] == data.Stdin {
		d.Follow, d.File, cfg.Trainers, cfg.Rank, cfg.Epochs = data.Stdin, nil, 1, nil, 0
	}
}

// run writes the predictions of a job's data to a file, or - for standard output. A file gets its name when it is
// complete.
func (f *predictFlags) run(ctx context.Context, job *trainer.Job, tasks []string) (r *report.Result, err error) {
	if f.out == "-" {
		return f.write(ctx, job, tasks, os.Stdout)
	}
	part := f.out + "." + rand.Text() + ".tmp"
	file, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	r, err = f.write(ctx, job, tasks, file)
	if err = errors.Join(err, file.Close()); err != nil || r.Interrupted {
		return r, errors.Join(err, os.Remove(part))
	}
	return r, os.Rename(part, f.out)
}

// write writes a line for each example: with the input its line, then a probability or number for each label, with
// commas between them, or the number of its class. tasks are the names of the labels, for a header.
func (f *predictFlags) write(ctx context.Context, job *trainer.Job, tasks []string,
	to io.Writer) (*report.Result, error) {
	w := bufio.NewWriterSize(to, 64<<10)
	var line []byte
	first := true
	r, err := job.Predict(ctx, f.workers, func(p *trainer.Predicted) error {
		separator := byte(',')
		if p.Lines != nil {
			separator = p.Lines.Separator
		}
		if first && p.Lines != nil && p.Lines.Head != nil {
			if _, err := w.Write(append(header(p.Lines, tasks), '\n')); err != nil {
				return err
			}
		}
		first = false
		for i := range p.N {
			line = line[:0]
			if p.Lines != nil {
				line = append(append(line, p.Lines.Line(i)...), separator)
			}
			line = appendPrediction(line, p.Result, p.N, i, separator)
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		return w.Flush() // standard input may pause
	})
	return r, errors.Join(err, w.Flush())
}

// header returns the header of the input with the columns of the predictions.
func header(l *data.Lines, tasks []string) (out []byte) {
	out = append(out, l.Head...)
	for _, name := range tasks {
		out = append(append(out, l.Separator), "prediction"...)
		if len(tasks) > 1 {
			out = append(append(out, '_'), name...)
		}
	}
	return out
}

// appendPrediction appends the prediction of example i of n.
func appendPrediction(line []byte, p *models.Result, n, i int, separator byte) []byte {
	if p.Classes != nil {
		return strconv.AppendInt(line, int64(p.Classes[i]), 10)
	}
	tasks := len(p.Predictions) / n
	for k, v := range p.Predictions[i*tasks : (i+1)*tasks] {
		if k > 0 {
			line = append(line, separator)
		}
		line = strconv.AppendFloat(line, float64(v), 'g', -1, 32)
	}
	return line
}

// taskNames returns the names of the labels that a job predicts.
func taskNames(cfg *trainer.Config) (out []string) {
	if s := cfg.Data.Described; s != nil {
		for i := range s.Labels {
			out = append(out, s.Labels[i].Name)
		}
	}
	return out
}
