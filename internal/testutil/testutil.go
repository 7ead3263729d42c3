// Package testutil has what the tests of many packages need: waiting for a condition, limiting a test in time, and
// checking the Code of an error.
package testutil

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// patience is the limit of a wait. A busy machine needs a lot of time.
const patience = 4 * time.Minute

// Context returns a context for all waits of a test. It ends when the test ends, or after patience.
func Context(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// Eventually polls ok until it returns true. It is for conditions that have no event.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// WantCode fails the test unless err has the code and contains all words.
func WantCode(tb testing.TB, err error, code rowraft.Code, words ...string) {
	tb.Helper()
	WantCodeOf(tb, "", err, code, words...)
}

// WantCodeOf is WantCode for a test of several cases: what names the case.
func WantCodeOf(tb testing.TB, what string, err error, code rowraft.Code, words ...string) {
	tb.Helper()
	if what != "" {
		what += ": "
	}
	if err == nil || rowraft.CodeOf(err) != code {
		tb.Errorf("%serror %v (code %v), want code %v", what, err, rowraft.CodeOf(err), code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Errorf("%serror %q does not say %q", what, err, w)
		}
	}
}
