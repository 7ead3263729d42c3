package certs

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/testutil"
)

// countedWrites counts the writes of a connection, and refuses those that begin while broken is set.
type countedWrites struct {
	testutil.WriteCounter
	bytes  atomic.Int64
	broken atomic.Bool
	since  atomic.Int64 // when the Write that runs began; 0: none runs
}

var errBroken = errors.New("the cable is cut")

func (c *countedWrites) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, errBroken
	}
	c.bytes.Add(int64(len(b)))
	c.since.Store(time.Now().UnixNano())
	defer c.since.Store(0)
	return c.WriteCounter.Write(b)
}

// pair returns the two ends of a TLS connection, and what is below the first.
func pair(t testing.TB) (client, server net.Conn, wire *countedWrites) {
	t.Helper()
	ca := newCA(t, "c")
	source := open(t, ca.files(t, Server, "a"), slog.New(slog.DiscardHandler))
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener(plain, source.Server(Server))
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	wire = &countedWrites{WriteCounter: testutil.WriteCounter{Conn: raw}}
	conf := source.Client(Server)
	conf.ServerName = "127.0.0.1"
	client = BatchRecords(tls.Client(NewRecordBuffer(wire), conf))
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = BatchRecords(accepted)
	for _, c := range []net.Conn{client, server} {
		if _, ok := c.(*batchedConn); !ok {
			t.Fatalf("BatchRecords returned %T", c)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { c.Close() })
	}
	hello := []byte("hello")
	go client.Write(hello)
	if _, err := io.ReadFull(server, make([]byte, len(hello))); err != nil {
		t.Fatal(err)
	}
	return client, server, wire
}

// TestRecordsOfAWriteAreSentTogether: a Write takes a system call for each 64 KiB, also on a new connection, whose
// records are small.
func TestRecordsOfAWriteAreSentTogether(t *testing.T) {
	client, server, wire := pair(t)
	for _, w := range []struct{ size, maxWrites int64 }{{1, 1}, {16 << 10, 1}, {16<<10 + 1, 1}, {60 << 10, 1},
		{64 << 10, 2}, {300 << 10, 5}, {1 << 20, 16}} {
		sent := make([]byte, w.size)
		for i := range sent {
			sent[i] = byte(i*7 + i>>8)
		}
		done := make(chan error, 1)
		before := wire.Writes.Load()
		go func() { _, err := client.Write(sent); done <- err }()
		got := make([]byte, w.size)
		if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes: they arrive changed, or not: %v", w.size, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := wire.Writes.Load() - before; n > w.maxWrites {
			t.Errorf("%d bytes take %d writes, want ≤ %d", w.size, n, w.maxWrites)
		}
	}
	before := wire.Writes.Load()
	client.(*batchedConn).records.Write([]byte("an alert that a Read sends"))
	if wire.Writes.Load() == before {
		t.Error("a record that is written when no Write runs is held")
	}
}

// TestWritesOfSeveralGoroutinesStayWhole: each Write arrives as a whole, while the other end sends too.
func TestWritesOfSeveralGoroutinesStayWhole(t *testing.T) {
	const writers, rounds, size = 4, 20, 100 << 10
	client, server, _ := pair(t)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			b := bytes.Repeat([]byte{byte(w + 1)}, size)
			for range rounds {
				client.Write(b) // an error ends the reader, too
			}
		})
	}
	wg.Go(func() { server.Write(make([]byte, 1<<20)) })
	wg.Go(func() { io.ReadFull(client, make([]byte, 1<<20)) })
	got := make([]byte, size)
	for range writers * rounds {
		if _, err := io.ReadFull(server, got); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(got, got[:1]); n != size {
			t.Fatalf("of %d bytes of one Write, %d are of another", size, size-n)
		}
	}
	wg.Wait()
}

// TestAWriteReportsWhatItCouldNotSend: records count as written for crypto/tls when they are held, so the error of
// their send ends the call, and no later one may continue after the gap.
func TestAWriteReportsWhatItCouldNotSend(t *testing.T) {
	for _, size := range []int{20 << 10, 500 << 10} {
		client, _, wire := pair(t)
		wire.broken.Store(true)
		if n, err := client.Write(make([]byte, size)); !errors.Is(err, errBroken) {
			t.Errorf("a Write of %d bytes on a broken connection: %d, %v", size, n, err)
		}
		wire.broken.Store(false)
		before := wire.bytes.Load()
		for _, next := range []int{1, 20 << 10} {
			if n, err := client.Write(make([]byte, next)); err == nil {
				t.Errorf("a Write of %d bytes after a gap returns %d", next, n)
			}
		}
		if n := wire.bytes.Load() - before; n != 0 {
			t.Errorf("%d bytes are sent after a gap", n)
		}
	}
}

// TestCloseEndsAWriteThatWaits: a peer that does not read does not delay Close, although all records of the Write are
// encrypted.
func TestCloseEndsAWriteThatWaits(t *testing.T) {
	client, _, wire := pair(t)
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := client.Write(make([]byte, 60<<10)); err != nil {
				done <- err
				return
			}
		}
	}()
	testutil.Eventually(t, "a Write waits", func() bool {
		began := wire.since.Load()
		return began != 0 && time.Since(time.Unix(0, began)) > 100*time.Millisecond
	})
	client.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the Write ends with %v, want %v", err, net.ErrClosed)
	}
}

// TestAWriteIsSentWhenItReturns: also if another Write holds its records at that time.
func TestAWriteIsSentWhenItReturns(t *testing.T) {
	client, _, wire := pair(t)
	for _, size := range []int{1, 20 << 10} {
		client.(*batchedConn).records.hold()
		before := wire.bytes.Load()
		if n, err := client.Write(make([]byte, size)); n != size || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n := wire.bytes.Load() - before; n < int64(size) {
			t.Errorf("of a Write of %d bytes, %d are sent", size, n)
		}
	}
}
