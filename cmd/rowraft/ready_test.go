package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/server"
)

// waitReady returns what the server wrote once it served.
func waitReady(t *testing.T, file string, done <-chan int, log *bytes.Buffer) server.Ready {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case code := <-done:
			t.Fatalf("the server ended with code %d; log:\n%s", code, log)
		case <-limit:
			t.Fatal("the server is not ready after 2 minutes")
		case <-poll.C:
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var info server.Ready
		if err := json.Unmarshal(raw, &info); err != nil {
			t.Fatalf("ready file %q: %v", raw, err)
		}
		return info
	}
}
