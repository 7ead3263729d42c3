package rpc

import (
	"slices"
	"strings"
	"testing"

	_ "google.golang.org/grpc/health/grpc_health_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1"
	_ "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/rowraft/rowraft/internal/certs"
	_ "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
)

// methods returns the full names of all calls that servers serve.
func methods() (out []string) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if p := f.Package(); p != "rowraft.v1" && p != "rowraft.serving.v1" && p != "grpc.health.v1" &&
			!strings.HasPrefix(string(p), "grpc.reflection.") {
			return true
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out = append(out, "/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	return out
}

// TestEveryCallDeclaresItsRoles: no caller may make a call without declared roles.
func TestEveryCallDeclaresItsRoles(t *testing.T) {
	all := methods()
	if len(all) < 50 {
		t.Fatalf("only %d calls found: %v", len(all), all)
	}
	for _, m := range all {
		if len(roles[m]) == 0 {
			t.Errorf("%s declares no role: add it to internal/rpc/roles.go", m)
		}
	}
	open := 0
	for m, who := range roles {
		if slices.Contains(who, Stranger) { // the one call of machines without a certificate
			if open++; m != "/rowraft.v1.Entrance/Join" || !slices.Equal(who, []certs.Role{Stranger, certs.Server}) {
				t.Errorf("%s is open to every role: %v", m, who)
			}
			continue
		}
		if !slices.Contains(all, m) {
			t.Errorf("%s has roles, but no service has the call", m)
		}
		for _, r := range who {
			if !slices.Contains(certs.Roles, r) {
				t.Errorf("%s: there is no role %q", m, r)
			}
		}
		if onlyServers := len(who) == 1 && who[0] == certs.Server; !onlyServers && !slices.Contains(who, certs.Admin) {
			t.Errorf("%s: an admin may not: %v", m, who)
		}
	}
	if open != 1 {
		t.Errorf("%d calls are open to every role, want one", open)
	}
}
