package trainer

import (
	"context"
	"io"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
)

// feed is the source of the loop's batches. One goroutine uses it.
type feed interface {
	// next fills w with the next batch. It returns io.EOF at the end, and data.ErrNoneYet if more may come
	// later: a stream has nothing new, or other trainers have the remaining data and may give it up.
	next(w *work) error
	// count returns how many batches the feed has given, in this process and those before.
	count() int64
	close()
}

// feed opens the source of the run's batches.
func (j *Job) feed(ctx context.Context) feed {
	if j.splits != nil {
		j.splits.Open(ctx, j.step)
		if j.ramp.InTurn() {
			return &rampFeed{feed: splitFeed{j.splits}, j: j, ctx: ctx}
		}
		return splitFeed{j.splits}
	}
	return &repeated{set: j.set, rank: j.cfg.rank(), trainers: j.cfg.Trainers, epochs: j.cfg.epochs(), batches: j.step,
		at: j.at}
}

// splitFeed reads the splits of the data that the scheduler gives to this trainer.
type splitFeed struct{ *member.Splits }

func (f splitFeed) count() int64 { return f.Batches() }

func (f splitFeed) close() { f.Close() }

func (f splitFeed) next(w *work) error {
	r, err := f.Next(w.data)
	if err == nil {
		w.Idle, w.Place, w.Step, w.after = r.Idle, r.Range, r.Batch, position{epoch: r.Epoch}
	}
	return err
}

// repeated reads the training examples of a set epoch after epoch, beginning at position at.
type repeated struct {
	set            data.Set
	rank, trainers int
	epochs         int // 0: unlimited
	batches        int64
	at             position // the position of the next batch

	src    data.Source  // nil between two epochs
	stream *data.Stream // src, if it is a stream
}

func (r *repeated) count() int64 { return r.batches }

func (r *repeated) next(w *work) error {
	if err := r.read(w.data); err != nil {
		return err
	}
	w.Step, w.after = r.batches, r.at
	return nil
}

func (r *repeated) read(b *data.Batch) error {
	empty := false // this epoch had no batch
	for {
		if r.src == nil {
			if r.epochs > 0 && r.at.epoch >= int64(r.epochs) {
				return io.EOF
			}
			if empty {
				return invalid("%s: no training examples for rank %d of %d", r.set.Name(), r.rank, r.trainers)
			}
			if err := r.openTrain(); err != nil {
				return err
			}
			if err := r.src.Skip(r.at.offset); err == io.EOF {
				return invalid("%s has fewer than the %d examples that trainer %d of %d had read before the "+
					"checkpoint: the data has changed", r.set.Name(), r.at.offset, r.rank, r.trainers)
			} else if err != nil {
				return err
			}
			empty = r.at.offset == 0 && r.stream == nil
		}
		err := r.src.Next(b)
		if err == nil {
			r.behind(b)
			if b.N == 0 { // only bad lines were left
				continue
			}
			return nil
		}
		if err != io.EOF {
			return err
		}
		r.close()
		r.at = position{epoch: r.at.epoch + 1, place: r.at.place}
	}
}

func (r *repeated) close() {
	if r.src != nil {
		r.src.Close()
		r.src = nil
	}
}
