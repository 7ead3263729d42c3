// Package s3test runs an S3 server for tests: gofakes3, in memory.
package s3test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

// Start runs the server with one bucket until the test ends. It returns what the
// environment of those who use it must say, as KEY=value.
func Start(tb testing.TB, bucket string) (env []string) {
	tb.Helper()
	store := s3mem.New()
	if err := store.CreateBucket(tb.Context(), bucket); err != nil {
		tb.Fatal(err)
	}
	fake := gofakes3.New(store).Server()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("delimiter") == "" {
			q.Del("delimiter") // gofakes3 v0.0.11 takes an empty one for one that is there
			r.URL.RawQuery = q.Encode()
		}
		fake.ServeHTTP(w, r)
	}))
	tb.Cleanup(srv.Close)
	return []string{"AWS_ENDPOINT_URL_S3=" + srv.URL, "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret",
		"AWS_REGION=us-east-1"}
}

// Setenv is Start for users in this process and its children.
func Setenv(t *testing.T, bucket string) {
	t.Helper()
	for _, e := range Start(t, bucket) {
		key, value, _ := strings.Cut(e, "=")
		t.Setenv(key, value)
	}
}
