package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// The buckets of a HungStore.
const (
	hungBucket   = "hung"   // no request gets an answer
	listedBucket = "listed" // it is empty when it is listed, and no other request gets an answer
)

// HungStore is an S3 endpoint that takes requests and does not answer them. The servers must have Env.
type HungStore struct {
	srv     http.Server
	addr    string
	closed  chan struct{}
	waiting atomic.Int64 // requests without an answer
}

// NewHungStore starts one. The caller closes it.
func NewHungStore() (*HungStore, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &HungStore{addr: l.Addr().String(), closed: make(chan struct{})}
	s.srv.Handler = s
	go func() { _ = s.srv.Serve(l) }()
	return s, nil
}

// Env makes servers take it for S3.
func (s *HungStore) Env() []string {
	return []string{"AWS_ENDPOINT_URL_S3=http://" + s.addr, "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret",
		"AWS_REGION=us-east-1"}
}

// Close ends it and all requests.
func (s *HungStore) Close() error {
	close(s.closed)
	return s.srv.Close()
}

// ServeHTTP answers a listing of listedBucket. Anything else waits until the caller gives up.
func (s *HungStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the caller is gone
	if r.Method == http.MethodGet && strings.Trim(r.URL.Path, "/") == listedBucket {
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprintf(w,
			`<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>%s</Name><IsTruncated>false</IsTruncated></ListBucketResult>`, listedBucket)
		return
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	select {
	case <-r.Context().Done():
	case <-s.closed:
	}
}

// hungFor is how long a destination hangs at least: longer than the lease of the trainer whose state it should take.
const hungFor = honestLease + 3*time.Second

// hungDestination makes a checkpoint to a destination that accepts everything and answers nothing, or lists nothing and
// takes no file. The trainer whose state it should take keeps its lease, and checkpoints to another destination are
// made.
func hungDestination(ctx context.Context, a *act) (err error) {
	if a.Hung == nil || a.Checkpoints == "" {
		a.skipped = true
		return nil
	}
	bucket := []string{hungBucket, listedBucket}[a.rng.IntN(2)]
	a.target = bucket
	h, err := a.honestJob(ctx)
	if err != nil {
		return a.unlessDisturbed(err)
	}
	defer func() { err = errors.Join(err, h.end(ctx)) }()
	hangs, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	before := a.Hung.waiting.Load()
	begun := time.Now()
	go func() { // a server that dies, or an election, ends the call
		defer close(ended)
		for try := 0; hangs.Err() == nil; try++ {
			_, _ = a.create(hangs, try, &rowraftv1.CreateCheckpointRequest{Destination: fmt.Sprintf("s3://%s/%08x", bucket, try),
				Job: h.job})
			sleep(hangs, 200*time.Millisecond)
		}
	}()
	for a.Hung.waiting.Load() <= before && time.Since(begun) < guestPatience && sleep(ctx, 20*time.Millisecond) {
	}
	if a.Hung.waiting.Load() <= before {
		return a.unlessDisturbed(errors.New("no server has called the destination that hangs"))
	}
	var longest time.Duration
	for range 2 {
		took, err := h.checkpoint(ctx)
		if err != nil {
			return err
		}
		longest = max(longest, took)
	}
	sleep(ctx, hungFor-time.Since(begun))
	if n := a.Hung.waiting.Load() - before; n > 0 {
		a.saw("%d calls hang, 2 checkpoints to another destination made, each within %.1f s", n, longest.Seconds())
	}
	return nil
}
