package depot

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
)

const (
	// patience is how long a depot may leave a listing, reading or removing call
	// without anything new.
	patience = time.Minute
	// writePatience is that of writing: the end of a large file, a sync or what S3
	// calls completing, takes long and looks the same as a hang.
	writePatience = 5 * time.Minute
	// knownPatience is the patience with a depot to which an earlier call hangs still.
	knownPatience = 10 * time.Second
	// cancelGrace is how long a call whose context has ended may take to end by
	// itself, and to leave nothing.
	cancelGrace = 2 * time.Second
	checks      = 20
	// maxStuck bounds the calls to one depot that were left behind and have not
	// returned: in a directory that hangs each of them keeps a thread.
	maxStuck = 8
)

// patient is a depot that cannot keep its caller: a call ends when its context does,
// or when nothing has moved for a while. What hangs then is left behind with its own
// buffers, and is undone should it succeed after all.
type patient struct{ Depot }

// stuck counts the calls that were left behind, by depot: the threads that they keep
// are those of the process.
var stuck struct {
	sync.Mutex
	calls map[string]int
}

func stuckCalls(depot string) int {
	stuck.Lock()
	defer stuck.Unlock()
	return stuck.calls[depot]
}

// hangError says that a depot does not answer.
type hangError string

func (e hangError) Error() string    { return string(e) }
func (hangError) Code() rowraft.Code { return rowraft.CodePrecondition }

func hangs(depot, format string, args ...any) error {
	return hangError(depot + " hangs: " + fmt.Sprintf(format, args...) +
		": see that every server reaches it (a network mount whose server is gone, an endpoint that accepts and says " +
		"nothing), then try again")
}

// watch tells who waits for a call what the depot does.
type watch struct {
	moves atomic.Int64 // how often it has answered a part
	idle  atomic.Bool  // the call does not wait for it
}

type watchKey struct{}

// moved tells who waits for the call of ctx that the depot has answered a part of it.
func moved(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok {
		w.moved()
	}
}

func (w *watch) moved() {
	w.moves.Add(1)
	w.idle.Store(false)
}

func (w *watch) pause() { w.idle.Store(true) }

// call is one call to a depot.
type call[T any] struct {
	depot    string
	what     string // "list", "read a/MANIFEST"
	patience time.Duration
	f        func(context.Context, *watch) (T, error)
	late     func(T, error) // gets the result of f if its caller no longer waits; may be nil

	ended, left bool // guarded by stuck
}

// await runs f on a goroutine of its own and waits for it while that has a point.
func (c *call[T]) await(ctx context.Context) (T, error) {
	var none, v T
	if n := stuckCalls(c.depot); n >= maxStuck {
		return none, hangs(c.depot, "%d calls to it have not returned yet, and %q is not tried", n, c.what)
	} else if n > 0 {
		c.patience = min(c.patience, knownPatience)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watch{}
	var err error
	done := make(chan struct{})
	go func() {
		got, failed := c.f(context.WithValue(ctx, watchKey{}, w), w)
		if c.end() {
			v, err = got, failed
			close(done)
			return
		}
		if c.late != nil {
			c.late(got, failed)
		}
		c.forget()
	}()
	if why := c.hold(ctx, w, done); why != nil && c.leave() {
		return none, why
	}
	<-done
	return v, err
}

// end records that f has returned, and reports whether its caller still waits.
func (c *call[T]) end() bool {
	stuck.Lock()
	defer stuck.Unlock()
	c.ended = true
	// Under one lock with leave: either the caller takes the result, or it goes to late, and never both.
	return !c.left
}

// leave gives f up, unless it has returned.
func (c *call[T]) leave() bool {
	stuck.Lock()
	defer stuck.Unlock()
	if c.ended {
		return false
	}
	c.left = true
	if stuck.calls == nil {
		stuck.calls = make(map[string]int)
	}
	stuck.calls[c.depot]++
	return true
}

// forget ends what leave began.
func (c *call[T]) forget() {
	stuck.Lock()
	defer stuck.Unlock()
	if stuck.calls[c.depot]--; stuck.calls[c.depot] == 0 {
		delete(stuck.calls, c.depot)
	}
}

// hold returns nil once the call has ended, else why it is not waited for any more. It
// looks checks times in its patience, and time counts as it looks: this process may have
// stood still, and the depot has not.
func (c *call[T]) hold(ctx context.Context, w *watch, done <-chan struct{}) error {
	t := time.NewTicker(c.patience / checks)
	defer t.Stop()
	waited, seen := 0, int64(0)
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			select {
			case <-done:
				return nil
			case <-time.After(cancelGrace):
				return context.Cause(ctx)
			}
		case <-t.C:
			waited++
			if now := w.moves.Load(); now != seen || w.idle.Load() {
				waited, seen = 0, now
			}
			if waited == checks {
				return hangs(c.depot, "no answer to %q for %v", c.what, c.patience)
			}
		}
	}
}

type none = struct{}

// write is a call that makes the file name. Who was told that it failed finds none.
func (p *patient) write(ctx context.Context, name string, f func(context.Context, *watch) error) error {
	c := &call[none]{
		depot: p.String(), what: "write " + name, patience: writePatience,
		f: func(ctx context.Context, w *watch) (none, error) { return none{}, f(ctx, w) },
		late: func(_ none, err error) {
			if err == nil {
				_ = p.Depot.Remove(context.WithoutCancel(ctx), name)
			}
		},
	}
	_, err := c.await(ctx)
	return err
}

// Write implements Depot. The time that fill itself takes does not count.
func (p *patient) Write(ctx context.Context, name string, fill func(io.Writer) error) error {
	return p.write(ctx, name, func(ctx context.Context, w *watch) error {
		return p.Depot.Write(ctx, name, func(to io.Writer) error {
			w.pause()
			defer w.moved()
			return fill(&watchedWriter{ctx, w, to})
		})
	})
}

// watchedWriter is where fill writes.
type watchedWriter struct {
	ctx context.Context
	w   *watch
	to  io.Writer
}

func (w *watchedWriter) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	w.w.moved()
	defer w.w.pause()
	return w.to.Write(b)
}

// Put implements Depot.
func (p *patient) Put(ctx context.Context, name string, content []byte) error {
	return p.write(ctx, name, func(ctx context.Context, _ *watch) error { return p.Depot.Put(ctx, name, content) })
}

// PutNew implements Depot.
func (p *patient) PutNew(ctx context.Context, name string, content []byte) error {
	return p.write(ctx, name, func(ctx context.Context, _ *watch) error { return p.Depot.PutNew(ctx, name, content) })
}

// List implements Depot.
func (p *patient) List(ctx context.Context, name string) ([]Entry, error) {
	c := &call[[]Entry]{depot: p.String(), what: strings.TrimSuffix("list "+name, " "), patience: patience,
		f: func(ctx context.Context, _ *watch) ([]Entry, error) {
			return p.Depot.List(ctx, name)
		}}
	return c.await(ctx)
}

// Remove implements Depot.
func (p *patient) Remove(ctx context.Context, names ...string) error {
	c := &call[none]{depot: p.String(), what: "remove files", patience: patience,
		f: func(ctx context.Context, _ *watch) (none, error) {
			return none{}, p.Depot.Remove(ctx, names...)
		}}
	_, err := c.await(ctx)
	return err
}

// Open implements Depot.
func (p *patient) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx) // of the file, which outlives the call
	c := &call[io.ReadCloser]{
		depot: p.String(), what: "open " + name, patience: patience,
		f: func(context.Context, *watch) (io.ReadCloser, error) { return p.Depot.Open(ctx, name) },
		late: func(r io.ReadCloser, err error) {
			if err == nil {
				_ = r.Close()
			}
		},
	}
	r, err := c.await(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	return &patientReader{ctx: ctx, cancel: cancel, depot: c.depot, name: name, from: r}, nil
}

// readAhead is how much is read at a time.
const readAhead = 1 << 20

// patientReader reads a file ahead, into a buffer that a read which is left behind keeps.
type patientReader struct {
	ctx    context.Context
	cancel context.CancelFunc
	depot  string
	name   string
	from   io.ReadCloser // nil: a read was left behind, and closes it
	buf    []byte
	rest   []byte // of buf
	err    error  // behind rest
}

// Read implements io.Reader.
func (r *patientReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 && r.err == nil {
		r.fill()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// got is what a read brought, and how the file ended.
type got struct {
	n   int
	end error
}

func (r *patientReader) fill() {
	if r.buf == nil {
		r.buf = make([]byte, readAhead)
	}
	buf, from := r.buf, r.from
	c := &call[got]{
		depot: r.depot, what: "read " + r.name, patience: patience,
		f: func(_ context.Context, w *watch) (g got, _ error) {
			for g.n < len(buf) && g.end == nil {
				var n int
				n, g.end = from.Read(buf[g.n:])
				g.n += n
				w.moved()
			}
			return g, nil
		},
		late: func(got, error) { _ = from.Close() },
	}
	g, err := c.await(r.ctx)
	if err != nil {
		r.from, r.buf, r.err = nil, nil, err
		return
	}
	r.rest, r.err = buf[:g.n], g.end
}

// Close implements io.Closer.
func (r *patientReader) Close() error {
	defer r.cancel()
	from := r.from
	if from == nil {
		return nil
	}
	c := &call[none]{depot: r.depot, what: "close " + r.name, patience: patience,
		f: func(context.Context, *watch) (none, error) {
			return none{}, from.Close()
		}}
	_, err := c.await(context.WithoutCancel(r.ctx))
	return err
}
