package redisload

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestDrawerDrawsDifferentKeys(t *testing.T) {
	for _, tc := range []struct{ rows, batch int }{{10, 10}, {1000, 100}, {1, 1}} {
		d := newDrawer(tc.rows, tc.batch, 1)
		for round := range 5 {
			seen := make(map[uint64]bool)
			for _, k := range d.keys() {
				if k >= uint64(tc.rows) || seen[k] {
					t.Fatalf("%d rows, round %d: key %d is out of range or twice", tc.rows, round, k)
				}
				seen[k] = true
			}
		}
	}
}

// answering returns a connection to a server that has already said text.
func answering(t *testing.T, text string) *conn {
	t.Helper()
	us, server := net.Pipe()
	t.Cleanup(func() { us.Close() })
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		io.WriteString(server, text)
		server.Close()
	}()
	return &conn{Conn: us, r: bufio.NewReader(us), w: bufio.NewWriter(us)}
}

func TestRepliesThatWouldFalsifyTheBenchmarkAreErrors(t *testing.T) {
	for _, tc := range []struct {
		name, command, reply, want string
		wait                       int
	}{
		{"two values", "mget", "*2\r\n$3\r\nabc\r\n$3\r\ndef\r\n", "", 0},
		{"a missing value", "mget", "*2\r\n$3\r\nabc\r\n$-1\r\n", "was the server filled", 0},
		{"a shorter value", "mget", "*2\r\n$3\r\nabc\r\n$2\r\nde\r\n", "want 3", 0},
		{"too few values", "mget", "*1\r\n$3\r\nabc\r\n", "want 2", 0},
		{"an error", "mset", "-OOM command not allowed\r\n", "OOM", 0},
		{"a set without a wait", "mset", "+OK\r\n", "", 0},
		{"a wait that reached enough", "mset", "+OK\r\n:2\r\n", "", 1},
		{"a wait that did not", "mset", "+OK\r\n:0\r\n", "want 1", 1},
		{"a connection that ends", "mget", "*2\r\n$3\r\na", "EOF", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := receive(config{batch: 2, wait: tc.wait}, answering(t, tc.reply), tc.command, make([]byte, 6))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("receive(%q) = %v, want %q", tc.reply, err, tc.want)
			}
		})
	}
}

func TestRequestsAreRESP(t *testing.T) {
	us, server := net.Pipe()
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(server)
		got <- string(b)
	}()
	c := &conn{Conn: us, w: bufio.NewWriter(us)}
	if err := c.mget([]uint64{1}); err != nil {
		t.Fatal(err)
	}
	if err := c.mset([]uint64{0x0102}, []byte("vv"), 1); err != nil {
		t.Fatal(err)
	}
	us.Close()
	want := "*2\r\n$4\r\nMGET\r\n$8\r\n\x01\x00\x00\x00\x00\x00\x00\x00\r\n" +
		"*3\r\n$4\r\nMSET\r\n$8\r\n\x02\x01\x00\x00\x00\x00\x00\x00\r\n$2\r\nvv\r\n" +
		"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n"
	if g := <-got; g != want {
		t.Errorf("sent\n%q, want\n%q", g, want)
	}
}

// A server that dies in the middle must end the run, not hang it.
func TestLoadEndsWhenTheServerDoes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "*1\r\n$1\r\nx\r\n")
			c.Close()
		}
	}()
	_, err = load(t.Context(), config{addr: l.Addr().String(), rows: 10, batch: 1, value: 1, conns: 3, depth: 2,
		duration: time.Hour}, "mget")
	if err == nil {
		t.Error("load returned no error although the server hung up")
	}
	l.Close()
	<-done
}
