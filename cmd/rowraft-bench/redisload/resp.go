package redisload

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// conn speaks RESP2 over one connection. One goroutine may write while another
// reads.
type conn struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

const bufferBytes = 512 << 10

func dial(addr string) (*conn, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, bufferBytes), w: bufio.NewWriterSize(c, bufferBytes)}, nil
}

func (c *conn) array(n int) {
	var b [24]byte
	c.w.Write(append(strconv.AppendInt(append(b[:0], '*'), int64(n), 10), "\r\n"...))
}

func (c *conn) bulk(p []byte) {
	var b [24]byte
	c.w.Write(append(strconv.AppendInt(append(b[:0], '$'), int64(len(p)), 10), "\r\n"...))
	c.w.Write(p)
	c.w.WriteString("\r\n")
}

func (c *conn) command(words ...string) {
	c.array(len(words))
	for _, w := range words {
		c.bulk([]byte(w))
	}
}

// key writes a key as 8 binary bytes, the shortest that names any of ours.
func (c *conn) key(k uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], k)
	c.bulk(b[:])
}

func (c *conn) mget(keys []uint64) error {
	c.array(1 + len(keys))
	c.bulk([]byte("MGET"))
	for _, k := range keys {
		c.key(k)
	}
	return c.w.Flush()
}

// mset writes MSET and, if wait > 0, WAIT for that many replicas.
func (c *conn) mset(keys []uint64, value []byte, wait int) error {
	c.array(1 + 2*len(keys))
	c.bulk([]byte("MSET"))
	for _, k := range keys {
		c.key(k)
		c.bulk(value)
	}
	if wait > 0 {
		c.command("WAIT", strconv.Itoa(wait), "0")
	}
	return c.w.Flush()
}

// header reads the first line of a reply: its type and what follows.
func (c *conn) header() (kind byte, rest []byte, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		return 0, nil, errors.New("empty reply line")
	}
	if line[0] == '-' {
		return 0, nil, fmt.Errorf("redis: %s", line[1:])
	}
	return line[0], line[1:], nil
}

func (c *conn) number(want byte) (int, error) {
	kind, rest, err := c.header()
	if err != nil {
		return 0, err
	}
	if kind != want {
		return 0, fmt.Errorf("reply %q%s, want %q", kind, rest, want)
	}
	return strconv.Atoi(string(rest))
}

// values reads the reply of MGET into dst, which has room for n values of one
// size, and fails if a key is missing: a benchmark that reads nothing is fast.
func (c *conn) values(dst []byte, n int) error {
	got, err := c.number('*')
	if err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("MGET answered %d values, want %d", got, n)
	}
	size := len(dst) / n
	for i := range n {
		length, err := c.number('$')
		if err != nil {
			return err
		}
		if length != size {
			return fmt.Errorf("value %d has %d bytes, want %d: was the server filled?", i, length, size)
		}
		if _, err := io.ReadFull(c.r, dst[i*size:(i+1)*size]); err != nil {
			return err
		}
		if _, err := c.r.Discard(2); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) ok() error {
	kind, rest, err := c.header()
	if err != nil {
		return err
	}
	if kind != '+' || string(rest) != "OK" {
		return fmt.Errorf("reply %q%s, want +OK", kind, rest)
	}
	return nil
}

// text reads a bulk string.
func (c *conn) text() (string, error) {
	n, err := c.number('$')
	if err != nil {
		return "", err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return "", err
	}
	return string(b[:n]), nil
}
