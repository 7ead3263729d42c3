package rpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// runBytes limits the payloads of pulls that one worker answers, unless there is a single one. Handing a pull to a
	// worker, and its message, take as much CPU time as reading some 200 rows.
	runBytes = 16 << 10
	// answerBytes limits the rows of a message with several answers. The client reads the first ones while the next ones
	// are found.
	answerBytes = 64 << 10
)

// Pulls answers the streams of PullMany. Its fields must not change. Safe for concurrent use.
type Pulls struct {
	Workers  *Workers
	Stopping context.Context             // the server stops when it ends
	Check    func(context.Context) error // refuses a request of a stream with this context
	// Ready reports that a pull waits for nothing. It may be wrong, if the pull begins to wait right after.
	Ready func(*rowraftv1.PullRequest) bool
	Pull  func(context.Context, *rowraftv1.PullRequest) (Counted, error)
}

// Serve answers the requests of a stream, one after the other, until the client ends the stream. When the server stops,
// it answers the present request and then ends the stream. The stream also ends with its connection, and that with the
// certificate of the caller (package certs).
//
// gRPC ends a stream when its handler returns, and nothing else ends a wait for the next request. So requests are
// received on a goroutine of their own.
func (p *Pulls) Serve(stream grpc.BidiStreamingServer[rowraftv1.PullManyRequest, rowraftv1.PullManyReply]) error {
	if p.Stopping.Err() != nil {
		return nil
	}
	s := &pullStream{p: p, stream: stream}
	ended := make(chan error, 1)
	go func() { ended <- s.run() }()
	select {
	case err := <-ended:
		return err
	case <-p.Stopping.Done():
	}
	if s.stop() {
		return nil
	}
	return <-ended
}

// pullStream is a stream of PullMany.
type pullStream struct {
	p      *Pulls
	stream grpc.BidiStreamingServer[rowraftv1.PullManyRequest, rowraftv1.PullManyReply]

	mu        sync.Mutex
	answering bool // a request
	stopped   bool // no further request is answered
}

func (s *pullStream) run() error {
	for {
		req, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.begin() {
			return nil
		}
		err = s.answer(req)
		if stopped := s.end(); stopped || err != nil {
			return err
		}
	}
}

// begin reports whether the request that has come is to be answered.
func (s *pullStream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering = !s.stopped
	return s.answering
}

// end is called after each request. It reports that it was the last one.
func (s *pullStream) end() (stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering = false
	return s.stopped
}

// stop makes the present request the last one. It reports that there is none.
func (s *pullStream) stop() (idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	return !s.answering
}

// answer answers the batches of a request, concurrently. Small batches that are ready are answered by one worker after
// each other, in common messages. A batch that waits delays no other.
func (s *pullStream) answer(req *rowraftv1.PullManyRequest) error {
	ctx := s.stream.Context()
	if err := s.p.Check(ctx); err != nil {
		return err
	}
	if req.TimeoutNs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, duration(req.TimeoutNs))
		defer cancel()
	}
	c, batches := manyCall{workers: s.p.Workers, stream: s.stream}, req.Batches
	reply := func(answers ...Counted) { c.send(&Answers{Number: req.Number, Answers: answers}) }
	pull := func(i int) Counted {
		a, err := s.p.Pull(ctx, batches[i])
		if err != nil {
			return Counted{Reply: &rowraftv1.PullReply{Batch: uint32(i), Error: Detail(err)}}
		}
		a.Reply.Batch = uint32(i)
		return a
	}
	return c.run(len(batches), func(first int) int {
		return Fit(len(batches)-first, runBytes, func(i int) []byte { return batches[first+i].Payload })
	}, func(first, n int) {
		var answers []Counted
		bytes := 0
		for i := first; i < first+n; i++ {
			if n > 1 && !s.p.Ready(batches[i]) {
				c.spawn(func() { reply(pull(i)) })
				continue
			}
			a := pull(i)
			size := len(a.Reply.Payload)
			if len(answers) > 0 && bytes+size > answerBytes {
				reply(answers...)
				answers, bytes = nil, 0
			}
			answers, bytes = append(answers, a), bytes+size
		}
		if len(answers) > 0 {
			reply(answers...)
		}
	})
}
