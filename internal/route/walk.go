package route

import (
	"context"
	"errors"
	"time"

	"github.com/rowraft/rowraft"
)

// maxHops is the number of hints that a walk follows without a pause: two servers that each
// name the other as the leader would be asked forever.
const maxHops = 3

// Walk chooses the server for each try of one call to the leader of a group:
//
//	w := route.Walk{Layer: route.Control, Places: places, AddrOf: addrOf}
//	for {
//		err := call(w.Addr())
//		if err == nil || !w.Again(ctx, err) {
//			return err
//		}
//	}
//
// It asks the places in turn, follows hints, and pauses after each round. Not safe for
// concurrent use.
type Walk struct {
	Layer  Layer
	Places func() []string                    // addresses in the order to ask; they may change between tries
	AddrOf func(rowraft.NodeID) (addr string) // gives the address of the leader that an error names; "" if unknown
	Rounds int                                // ends the walk after so many; 0: it goes on until ctx ends

	backoff Backoff
	round   int // places in this round
	turn    int // the index of the next place
	addr    string
	named   string // address of the leader that the last error named; "" if none
	hops    int    // hints followed since the last pause
	done    int    // rounds
}

// Addr returns the address for the next try; "" if there is no place to ask.
func (w *Walk) Addr() string {
	if w.addr = w.named; w.addr != "" {
		return w.addr
	}
	places := w.Places()
	if w.round = len(places); w.round > 0 {
		w.addr = places[w.turn%w.round]
	}
	return w.addr
}

// Answered starts the back-off from the beginning. A call that runs for long, such as a
// stream, calls it when the server has answered.
func (w *Walk) Answered() { w.backoff, w.hops = Backoff{}, 0 }

// Again reports whether the call is to be sent again, to the next Addr. err is the result
// of the last try. Again pauses where the action of err says so, and returns false if ctx
// ends.
func (w *Walk) Again(ctx context.Context, err error) bool {
	switch On(w.Layer, err) {
	case Follow:
		w.named = w.hint(err)
		if w.named == "" {
			break // as Next
		}
		if w.hops++; w.hops <= maxHops {
			return ctx.Err() == nil
		}
		w.named = "" // or servers that name each other would be asked forever, and the leader never
		w.turn++
		return w.pause(ctx, 0)
	case Wait:
		w.named = w.addr
		return w.pause(ctx, RetryAfter(err))
	case Next, Avoid:
		w.named = ""
	default:
		return false
	}
	w.turn++
	if w.turn < w.round {
		return ctx.Err() == nil
	}
	w.turn = 0
	return w.pause(ctx, 0)
}

// hint returns the address of the leader that err names, "" if that is the server which
// returned it.
func (w *Walk) hint(err error) string {
	nl, ok := errors.AsType[*rowraft.NotLeaderError](err)
	if !ok || nl.Leader == "" {
		return ""
	}
	if addr := w.AddrOf(nl.Leader); addr != w.addr {
		return addr
	}
	return ""
}

// pause ends a round.
func (w *Walk) pause(ctx context.Context, atLeast time.Duration) bool {
	w.hops = 0
	if w.done++; w.done == w.Rounds {
		return false
	}
	return ctx.Err() == nil && w.backoff.Wait(ctx, atLeast) == nil
}
