package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
)

// predict writes the predictions of a job's data to a file, or - for standard output. A file gets its name when it is
// complete.
func predict(ctx context.Context, job *trainer.Job, path string) (r *report.Result, err error) {
	if path == "-" {
		return writePredictions(ctx, job, os.Stdout)
	}
	part := path + "." + rand.Text() + ".tmp"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	r, err = writePredictions(ctx, job, f)
	if err = errors.Join(err, f.Close()); err != nil || r.Interrupted {
		return r, errors.Join(err, os.Remove(part))
	}
	return r, os.Rename(part, path)
}

// writePredictions writes a line for each example: a probability or number for each label, with commas between them, or
// the number of its class.
func writePredictions(ctx context.Context, job *trainer.Job, to io.Writer) (*report.Result, error) {
	w := bufio.NewWriterSize(to, 64<<10)
	var line []byte
	r, err := job.Predict(ctx, func(n int, p *models.Result) error {
		for i := range n {
			line = line[:0]
			if p.Classes != nil {
				line = strconv.AppendInt(line, int64(p.Classes[i]), 10)
			} else {
				tasks := len(p.Predictions) / n
				for _, v := range p.Predictions[i*tasks : (i+1)*tasks] {
					line = append(strconv.AppendFloat(line, float64(v), 'g', -1, 32), ',')
				}
				line = line[:len(line)-1]
			}
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		return nil
	})
	return r, errors.Join(err, w.Flush())
}
