//go:build deps

// Package deps pins the module versions before the code that uses them exists.
package deps

import (
	_ "github.com/HdrHistogram/hdrhistogram-go"
	_ "github.com/dustin/go-humanize"
	_ "github.com/ebitengine/purego"
	_ "github.com/gomlx/compute"
	_ "github.com/gomlx/compute/gobackend"
	_ "github.com/gomlx/go-xla/compute/xla"
	_ "github.com/gomlx/gomlx/core/graph"
	_ "github.com/gomlx/gomlx/core/tensors"
	_ "github.com/gomlx/gomlx/ml/layers"
	_ "github.com/gomlx/gomlx/ml/model"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/uuid"
	_ "github.com/hashicorp/raft"
	_ "github.com/hashicorp/raft-boltdb/v2"
	_ "github.com/hashicorp/raft-wal"
	_ "github.com/jedib0t/go-pretty/v6/table"
	_ "github.com/lmittmann/tint"
	_ "github.com/spf13/cobra"
	_ "github.com/vbauerster/mpb/v8"
	_ "github.com/zeebo/xxh3"
	_ "go.etcd.io/bbolt"
	_ "go.uber.org/goleak"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "golang.org/x/tools/go/packages"
	_ "google.golang.org/grpc"
	_ "google.golang.org/grpc/health"
	_ "google.golang.org/protobuf/proto"
	_ "pgregory.net/rapid"
)
