package tidy

import (
	"fmt"
	"regexp"
)

// pins are the versions that build together (CONTRIBUTING.md, "Dependencies"). An
// upgrade changes them here, with what was measured.
var pins = map[string]string{
	"github.com/hashicorp/raft":           "v1.7.3", // v1.8.0 needs a go-metrics that the two below cannot use
	"github.com/hashicorp/raft-boltdb/v2": "v2.3.1",
	"go.etcd.io/bbolt":                    "v1.5.0",
	"google.golang.org/grpc":              "v1.85.0",
	"google.golang.org/protobuf":          "v1.36.12",
	"github.com/gomlx/gomlx":              "v0.28.8", // the last for Go 1.26
	"github.com/gomlx/compute":            "v0.1.6",
	"github.com/gomlx/go-xla":             "v0.4.5",
	"github.com/ebitengine/purego":        "v0.11.3",
}

// pinsWhenUsed must hold once the module is required.
var pinsWhenUsed = map[string]string{
	"github.com/dgraph-io/ristretto/v2": "v2.4.2",
}

var requirement = regexp.MustCompile(`(?m)^\s*(?:require\s+)?(\S+\.\S+/\S+|go\.\S+/\S+)\s+(v\S+)`)

// CheckGoMod compares a go.mod with the pins.
func CheckGoMod(gomod string) []string {
	have := make(map[string]string)
	for _, m := range requirement.FindAllStringSubmatch(gomod, -1) {
		have[m[1]] = m[2]
	}
	var bad []string
	for module, want := range sorted(pins) {
		if have[module] != want {
			bad = append(bad, fmt.Sprintf("%s is %q, want %s", module, have[module], want))
		}
	}
	for module, want := range sorted(pinsWhenUsed) {
		if v, used := have[module]; used && v != want {
			bad = append(bad, fmt.Sprintf("%s is %s, want %s", module, v, want))
		}
	}
	if m := regexp.MustCompile(`(?m)^\s*replace\b.*`).FindString(gomod); m != "" {
		bad = append(bad, fmt.Sprintf("%q: a replaced module is another module: `go install` of ours refuses it", m))
	}
	if !regexp.MustCompile(`(?m)^go 1\.26(\.\d+)?$`).MatchString(gomod) {
		bad = append(bad, "the go line is not of Go 1.26")
	}
	return bad
}
