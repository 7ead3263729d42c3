package rpc

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestLimitListener: a connection beyond the limit is closed at once, and a connection that ends makes room.
func TestLimitListener(t *testing.T) {
	for name, limits := range map[string][2]int{"in all": {2, 99}, "of one host": {99, 2}} {
		t.Run(name, func(t *testing.T) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := LimitListener(inner, limits[0], limits[1], false)
			accepted, done := make(chan net.Conn, 9), make(chan struct{})
			go func() {
				defer close(done)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- c
				}
			}()
			defer func() { l.Close(); <-done }()
			dial := func() net.Conn {
				c, err := net.Dial("tcp", inner.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				c.SetReadDeadline(time.Now().Add(time.Minute))
				return c
			}
			dial()
			dial()
			first := <-accepted
			defer (<-accepted).Close()
			if _, err := dial().Read(make([]byte, 1)); err != io.EOF {
				if e, ok := err.(net.Error); err == nil || ok && e.Timeout() {
					t.Fatalf("the third stays open: %v", err)
				}
			}
			first.Close()
			first.Close() // counts once
			dial()
			defer (<-accepted).Close()
			if _, err := dial().Read(make([]byte, 1)); err == nil {
				t.Fatal("the fourth was sent something")
			} else if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Fatal("closing one connection twice made two places")
			}
		})
	}
}
