package cluster

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Client is the name of all clients as the end of a link.
const Client = "client"

// Link is one direction between two ends: names of servers, or Client.
type Link struct{ From, To string }

// LinkPolicy is what happens to bytes on a link. The zero value passes them on.
type LinkPolicy struct {
	// Drop lets nothing through. Connections stay open and look alive to their
	// sender; what was held back arrives when the policy ends.
	Drop bool
	// Reset closes connections on the link with RST, now and when they are made.
	Reset bool
	// Delay and Jitter: every piece arrives Delay later, and up to Jitter more.
	Delay, Jitter time.Duration
	// Loss is the probability that a piece comes one retransmission (200 ms) later,
	// and all behind it: what TCP makes of lost packets.
	Loss float64
	// BytesPerSecond bounds what passes; 0: no bound.
	BytesPerSecond int
}

const retransmission = 200 * time.Millisecond

// Join is both policies on one link.
func (p LinkPolicy) Join(q LinkPolicy) LinkPolicy {
	out := LinkPolicy{
		Drop: p.Drop || q.Drop, Reset: p.Reset || q.Reset,
		Delay: p.Delay + q.Delay, Jitter: p.Jitter + q.Jitter, Loss: max(p.Loss, q.Loss),
		BytesPerSecond: p.BytesPerSecond,
	}
	if q.BytesPerSecond > 0 && (p.BytesPerSecond == 0 || q.BytesPerSecond < p.BytesPerSecond) {
		out.BytesPerSecond = q.BytesPerSecond
	}
	return out
}

// Lateness is how much later a piece of so many bytes arrives under p.
func (p LinkPolicy) Lateness(bytes int) time.Duration {
	d := p.Delay
	if p.Jitter > 0 {
		d += rand.N(p.Jitter)
	}
	if p.Loss > 0 && rand.Float64() < p.Loss {
		d += retransmission
	}
	if p.BytesPerSecond > 0 {
		d += time.Duration(float64(bytes) / float64(p.BytesPerSecond) * float64(time.Second))
	}
	return d
}

// rule is a policy on some links, until it is lifted.
type rule struct {
	links  []Link
	policy LinkPolicy
}

// Between lists both directions between every end of a and every end of b.
func Between(a, b []string) []Link {
	return append(OneWay(a, b), OneWay(b, a)...)
}

// OneWay lists the links from every end of a to every end of b.
func OneWay(from, to []string) []Link {
	var out []Link
	for _, f := range from {
		for _, t := range to {
			if l := (Link{f, t}); f != t && !slices.Contains(out, l) {
				out = append(out, l)
			}
		}
	}
	return out
}
