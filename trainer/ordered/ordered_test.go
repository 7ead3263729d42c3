package ordered

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// numbers returns stages for the numbers below n, whose Compute takes less time the later the number is, and where they
// are written.
func numbers(n, workers int) (s *Stages[*int], written *[]int) {
	next := 0
	written = new([]int)
	s = &Stages[*int]{
		Read: func(_ context.Context, p *int) error {
			if next == n {
				return io.EOF
			}
			*p, next = next, next+1
			return nil
		},
		Pull:  func(context.Context, *int) error { return nil },
		Write: func(p *int) error { *written = append(*written, *p); return nil },
	}
	for range workers {
		s.Compute = append(s.Compute, func(p *int) error { time.Sleep(time.Duration(n-*p) * time.Second); return nil })
	}
	return s, written
}

func items(n int) (out []*int) {
	for range n {
		out = append(out, new(int))
	}
	return out
}

func TestItemsComeInOrder(t *testing.T) {
	for _, workers := range []int{1, 2, 5} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			s, got := numbers(20, workers)
			if err := s.Run(t.Context(), items(2*workers+2)); err != nil {
				t.Fatal(err)
			}
			var want []int
			for i := range 20 {
				want = append(want, i)
			}
			if !slices.Equal(*got, want) {
				t.Errorf("%d workers: %v", workers, *got)
			}
			if took := time.Since(began).Seconds(); workers == 5 && took > 210/2 {
				t.Errorf("5 workers took %v s for work of 210 s", took)
			}
		})
	}
}

// TestAnErrorOfAStageEndsAll: Run returns the error of each stage, and the end of its context.
func TestAnErrorOfAStageEndsAll(t *testing.T) {
	broken := errors.New("broken")
	for name, change := range map[string]func(*Stages[*int]){
		"read":    func(s *Stages[*int]) { s.Read = func(context.Context, *int) error { return broken } },
		"pull":    func(s *Stages[*int]) { s.Pull = func(context.Context, *int) error { return broken } },
		"compute": func(s *Stages[*int]) { s.Compute[1] = func(*int) error { return broken } },
		"write":   func(s *Stages[*int]) { s.Write = func(*int) error { return broken } },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := numbers(20, 3)
			change(s)
			if err := s.Run(t.Context(), items(8)); !errors.Is(err, broken) {
				t.Errorf("%s: %v, want its error", name, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		s, got := numbers(20, 1)
		if err := s.Run(ctx, items(4)); !errors.Is(err, context.DeadlineExceeded) || len(*got) == 20 {
			t.Errorf("%v after %d items, want the end of the context", err, len(*got))
		}
	})
}
