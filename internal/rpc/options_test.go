package rpc

import (
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// setting reads an unexported field of grpc-go's options; if a later version lacks the name, the test fails.
func setting(t *testing.T, v any, path ...string) any {
	t.Helper()
	x := reflect.Indirect(reflect.ValueOf(v))
	for _, name := range path {
		if x = reflect.Indirect(reflect.Indirect(x).FieldByName(name)); !x.IsValid() {
			t.Fatalf("%T has no %v", v, path)
		}
	}
	switch {
	case x.CanUint():
		return x.Uint()
	case x.CanInt():
		return uint64(x.Int())
	}
	return x.Bool()
}

// TestServersAreBounded: grpc-go's defaults are too high: endless streams, two minutes for a handshake, 16 MiB
// of headers, keepalive after two hours.
func TestServersAreBounded(t *testing.T) {
	s := grpc.NewServer(ServerOptions(nil)...)
	defer s.Stop()
	for _, tc := range []struct {
		want any
		path []string
	}{
		{uint64(256), []string{"maxConcurrentStreams"}},
		{uint64(5 * time.Second), []string{"connectionTimeout"}},
		{uint64(16 << 10), []string{"maxHeaderListSize"}},
		{uint64(MaxRequestBytes), []string{"maxReceiveMessageSize"}},
		{uint64(MaxReplyBytes), []string{"maxSendMessageSize"}},
		{uint64(30 * time.Second), []string{"keepaliveParams", "Time"}},
		{uint64(10 * time.Second), []string{"keepaliveParams", "Timeout"}},
		{uint64(time.Hour), []string{"keepaliveParams", "MaxConnectionAge"}},
		{uint64(2 * time.Hour), []string{"keepaliveParams", "MaxConnectionAgeGrace"}},
		{uint64(5 * time.Second), []string{"keepalivePolicy", "MinTime"}},
	} {
		if got := setting(t, s, append([]string{"opts"}, tc.path...)...); got != tc.want {
			t.Errorf("%v is %v, want %v", tc.path, got, tc.want)
		}
	}
	if n := setting(t, s, "opts", "maxConcurrentStreams"); n == uint64(math.MaxUint32) {
		t.Error("streams of a connection are not bounded")
	}
}

// TestClientsDoNotRetryByThemselves: the client would not know of a push that gRPC resends by itself or because
// of a server's
// service config.
func TestClientsDoNotRetryByThemselves(t *testing.T) {
	c, err := Dial("127.0.0.1:1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, tc := range []struct {
		want any
		path []string
	}{
		{true, []string{"disableRetry"}},
		{true, []string{"disableServiceConfig"}},
		{uint64(16 << 10), []string{"copts", "MaxHeaderListSize"}},
		{uint64(10 * time.Second), []string{"copts", "KeepaliveParams", "Time"}},
		{uint64(5 * time.Second), []string{"copts", "KeepaliveParams", "Timeout"}},
	} {
		if got := setting(t, c, append([]string{"dopts"}, tc.path...)...); got != tc.want {
			t.Errorf("%v is %v, want %v", tc.path, got, tc.want)
		}
	}
}
