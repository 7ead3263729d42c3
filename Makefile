# `make help` lists the targets. CONTRIBUTING.md says when to use which.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN     := bin
TOOLS   := $(CURDIR)/.cache/bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# The SIMD kernels need an experiment of the Go 1.26 toolchain that exists on
# amd64 only. Everything also builds, and is tested, without it.
ifeq ($(shell go env GOARCH),amd64)
SIMD := simd
endif

# Tools, at exact versions, built into .cache/bin.
STATICCHECK_VERSION        := v0.8.2
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
BUF_VERSION                := v1.60.0

# Tools for Python, at exact versions, in a virtual environment in .cache.
RUFF_VERSION := 0.17.6
MYPY_VERSION := 2.4.1
PYLINT_ENV   := $(CURDIR)/.cache/python-lint-$(RUFF_VERSION)-$(MYPY_VERSION)

AUDITWHEEL_VERSION := 6.8.2
TWINE_VERSION      := 7.0.0
WHEEL_ENV          := $(CURDIR)/.cache/python-wheel-$(AUDITWHEEL_VERSION)-$(TWINE_VERSION)

# The newest PyTorch that the newest TorchRec loads with. PyPI has no PyTorch for x86-64 without CUDA: 5.5 GB.
TORCH_VERSION    := 2.14.1
TORCHREC_VERSION := 1.9.2
TORCH_PACKAGES    = torch==$(TORCH_VERSION) numpy==2.4.6 pytest==9.2.0 safetensors==0.8.0
TORCHREC_PACKAGES = torchrec==$(TORCHREC_VERSION) fbgemm-gpu-cpu==1.9.0 tensordict==0.15.3 pyvers==0.2.3 \
	cloudpickle==3.1.3 pyre-extensions==0.0.32 typing-inspect==0.9.0 mypy-extensions==1.2.0
TORCH_ENV        := $(CURDIR)/.cache/python-torch-$(TORCH_VERSION)-$(TORCHREC_VERSION)

# Most tests wait for timers and disks more than they compute, so PARALLEL packages run at once.
# `make lint` vets everything; go test would vet each package again in each build.
PARALLEL ?= 4
GOTEST   := go test -timeout 45m -vet=off -p $(PARALLEL)
PKG      ?= ./...
FUZZTIME ?= 10s
BENCH    ?= .
BENCHTIME ?= 1s

##@ Build and run

.PHONY: build
build: ## build bin/rowraft and bin/rowraft-trainer (SIMD kernels on amd64)
	GOEXPERIMENT=$(SIMD) go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

.PHONY: build-plain
build-plain: ## build every package without SIMD; keeps no binary
	GOEXPERIMENT= go build ./...

.PHONY: demo
demo: build ## train on a cluster on this machine, kill a leader, check everything (MODE=async|sync|ssp|geo, STEPS=1500 of each trainer)
	$(BIN)/rowraft demo $(if $(MODE),--mode $(MODE)) $(if $(STEPS),--steps $(STEPS))

.PHONY: mnist
mnist: build ## a LeNet on handwritten digits, all weights on three servers: ≥ 0.98 in 3 epochs, 2 minutes (needs examples/data/mnist: examples/README.md)
	$(BIN)/rowraft-bench mnist $(ARGS)

##@ Test

.PHONY: test
test: ## all tests, built as `make build` does (PKG=./shard/... for some)
	GOEXPERIMENT=$(SIMD) $(GOTEST) $(PKG)

SIM_SEEDS ?= 40

.PHONY: sim
sim: ## whole clusters in virtual time with SIM_SEEDS=40 seeds; `make test` runs 4
	GOEXPERIMENT=$(SIMD) $(GOTEST) -count=1 ./e2e/sim -run 'TestSeeds' -sim.seeds $(SIM_SEEDS)

# Only optim and wire have different code without SIMD. CI tests them and the packages that compute rows with
# them; verify-full tests every package that depends on them (scripts/plain-packages.sh).
PLAIN_DIFFERS := ./optim ./wire
PLAIN_PKG     ?= $(PLAIN_DIFFERS) ./shard/... ./e2e/reference

.PHONY: test-plain
test-plain: ## the tests whose code differs without SIMD (PLAIN_PKG=./node for others)
	GOEXPERIMENT= $(GOTEST) $(PLAIN_PKG)

.PHONY: flakes
flakes: ## tests that fail now and then: PKG=./node again and again on a busy machine (ROUNDS=3 WIDE=4 RACE=1 RUN=regexp); TARDY=1: some of its goroutines come late; STALL=1: its processes stand still now and then
	GOEXPERIMENT=$(SIMD) scripts/flakes.sh $(PKG)

.PHONY: arm64
arm64: ## what must have the same bits on every processor, on arm64 under qemu-user; skipped where that does not install (ARGS=--all)
	scripts/arm64.sh $(ARGS)

# -race also checks pointers, and GoMLX's matrix product of v0.1.6 fails that check.
RACE_FLAGS := -gcflags='github.com/gomlx/compute/...=-d=checkptr=0'

# Tests of one goroutine: the detector has nothing to find in them, and they would take minutes under it. Decoders and
# damaged bytes first, then long computations of shard, checkpoint, raftstore, scheduler and e2e/check, then runs of one
# trainer, whose threads smaller tests run too (TestLeNetThreads, TestThreadsAreReproducible). verify-full skips none.
RACE_SKIP ?= ^Fuzz|Golden|FlippedBit|Impossible|^TestAWeekOfRetraining|^TestARestoredClusterGoesOnAsItsSource|^TestRestoreIntoOtherNumbersOfSlots|^TestDeltasMergeToTheState|^TestADeltaAndTheEndOfItsParent|^TestADeltaAndManyEnds|^TestSessionScripts|^TestDelayedCopiesApplyNothing|^TestASessionThatIsOverNeverOpensAgain|^TestNothingDependsOnTheSecret|^TestCheckSlotInSteps|^TestTableAgainstModel|^TestChosenKeys|^TestEqualTags|^TestTagsOfChosenKeys|^TestFormation|^TestPlacementSettles|^TestRegistryModel|^TestMachineMatchesModel|^TestEpochsAreCovered|^TestVec|^TestPorcupine|^TestGoodHistories|^TestEveryMutationIsCaught|^TestReducedSearch|^TestBytesPerRow|^TestSnapshotTakesMicroseconds|^TestGrowth|^TestADamagedSnapshotChangesNothing|^TestLiesWithGoodSums|^TestDimsOfEveryKind|^TestChainsHoldWhatThereWas|^TestCriteo|^TestGenerated|^TestAdult|^TestLeNetJob|^TestGeoOfOneTrainer|^TestLaterOptimizersLearn

# The packages with concurrency of their own, and whole clusters in one process (one seed of e2e/sim). The processes
# that e2e starts are built without the detector.
RACE_PKG ?= ./node/... ./raftstore/... ./e2e/sim ./scheduler ./scheduler/checkpoints ./scheduler/jobs ./shard/... ./trainer ./client/... ./checkpoint/... ./trainer/average ./trainer/data \
	./internal/certs ./internal/identity ./internal/quota ./internal/route ./internal/rpc ./internal/slab ./internal/vfs/... ./e2e/check

.PHONY: race
race: ## packages with concurrency of their own under the race detector (RACE_PKG=./... for all)
	GOEXPERIMENT=$(SIMD) $(GOTEST) -race $(RACE_FLAGS) -skip '$(RACE_SKIP)' $(RACE_PKG)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=10s each
	GOEXPERIMENT=$(SIMD) scripts/fuzz.sh $(FUZZTIME)

# verify runs 2 and 3, verify-full these.
CHAOS_SEEDS ?= 2 3 4 5 6

.PHONY: chaos
chaos: build-faults ## kills, cuts, bad disks and hostile clients under load, everything checked: 2 minutes a seed (CHAOS_SEEDS="2 3 4 5 6")
	scripts/chaos.sh $(BIN) $(CHAOS_SEEDS)

.PHONY: three-roles
three-roles: ## the scripts of examples/three-roles, each on a cluster of its own
	GOEXPERIMENT=$(SIMD) $(GOTEST) -count=1 -v -run 'TestThreeRoleScripts' ./e2e

.PHONY: documents
documents: ## README.md, docs/getting-started.md and docs/tutorial.md, command by command, in one shell each: 1 minute
	GOEXPERIMENT=$(SIMD) $(GOTEST) -count=1 -v -run 'TestDocuments' ./e2e

.PHONY: build-faults
build-faults: build ## bin/rowraft-faults too: a server whose disk can be told to fail
	GOEXPERIMENT=$(SIMD) go build -tags rowraft_faults -ldflags '$(LDFLAGS)' -o $(BIN)/rowraft-faults ./cmd/rowraft

.PHONY: canaries
canaries: ## builds with promises broken on purpose: the checks must notice each (internal/canary)
	GOEXPERIMENT=$(SIMD) scripts/canaries.sh

MIN ?= 30

.PHONY: soak
soak: build-faults ## chaos for MIN=30 minutes; each run adds a line to docs/reliability-ledger.md
	scripts/soak.sh $(MIN) $(BIN) docs/reliability-ledger.md

.PHONY: bench
bench: ## Go benchmarks, none of them long (BENCH=regexp PKG=./shard/... BENCHTIME=1x)
	GOEXPERIMENT=$(SIMD) go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

.PHONY: bench-rowstore
bench-rowstore: build ## the row store alone, compared with Go's map and its bars (ARGS="--json --only gather", 3 GiB)
	$(BIN)/rowraft-bench rowstore --check $(ARGS)

.PHONY: bench-snapshot
bench-snapshot: build ## what a shard's snapshot costs those who push, against its bars (ARGS="--json", 3 GiB)
	$(BIN)/rowraft-bench rowstore --check --only 'snapshot|acked' $(ARGS)

.PHONY: bench-stragglers
bench-stragglers: build ## steps per second with one slow worker and without it, in modes sync, quorum and async (ARGS="--json", 1 minute)
	$(BIN)/rowraft-bench stragglers --shards 4 $(ARGS)

N ?= 40

.PHONY: bench-failover
bench-failover: build-faults ## how long pushes wait for a new leader, against the bars: N=40 kills −9, transfers, moves, restarts, disk stalls, 6 minutes (ARGS="--json")
	$(BIN)/rowraft-bench failover --check --kills $(N) $(ARGS)

.PHONY: bench-gaps
bench-gaps: build ## how long pushes wait for planned changes: N=40 transfers, moves and restarts each, 6 minutes (ARGS="--json")
	$(BIN)/rowraft-bench failover --check --kills 0 --stalls 0 --servers 0 --transfers $(N) --moves $(N) --restarts $(N) $(ARGS)

.PHONY: bench-failover-smoke
bench-failover-smoke: build-faults ## a few of each, held against no bar: shows that pushes and reads go on after all of them
	$(BIN)/rowraft-bench failover --kills 2 --transfers 1 --moves 1 --restarts 1 --stalls 1 --servers 1 --stall-limit 10s

.PHONY: bench-overload
bench-overload: build ## a minute of ten times what the limits of three servers let through, against the bars (ARGS="--json")
	$(BIN)/rowraft-bench overload --check --seconds 60 $(ARGS)

SEEDS  ?= 10
JOBS   ?= examples/train-adult.yaml scripts/optimizers/sparse.yaml

.PHONY: compare-optimizers
compare-optimizers: ## each optimizer next to PyTorch's, the tables of docs/optimizers.md: SEEDS=10 JOBS="JOB.yaml ...", 8 minutes (needs Debian's python3-torch and examples/data/adult: examples/README.md)
	GOEXPERIMENT=$(SIMD) go run ./scripts/optimizers --seeds $(SEEDS) --python $(PYTHON) $(JOBS)

.PHONY: compare-models
compare-models: ## each kind of model next to the same model in PyTorch, the tables of docs/training.md: ARGS="--speed", or --seeds 5; 15 minutes (needs Debian's python3-torch, and the data in ../shared/data or ARGS="--data FOLDER")
	GOEXPERIMENT=$(SIMD) go run ./scripts/models --python $(PYTHON) $(ARGS)

.PHONY: bench-peers
bench-peers: build ## rowraft and Redis in one run, as ratios (bench/peers/compare.sh --help)
	bench/peers/compare.sh

.PHONY: bench-smoke
bench-smoke: build ## the same, too short to quote: shows that it still runs
	@if command -v redis-server >/dev/null; then \
		ROUNDS=1 SECONDS_EACH=2 ROWS=100000 bench/peers/compare.sh; \
	else \
		echo "bench-smoke: skipped: no redis-server (apt-get install redis-server)"; \
	fi

##@ Python

PYTHON ?= /usr/bin/python3
CSHARED = GOEXPERIMENT=$(SIMD) go build -buildmode=c-shared -ldflags '$(LDFLAGS)'

# python/rowraft/_version.py has the version of the package, and what is in the wheel states it, too, with the commit.
WHEEL_VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/rowraft/_version.py)+$(VERSION)

.PHONY: librowraft
librowraft: ## bin/librowraft.so, the Go client as a C library (needs gcc)
	$(CSHARED) -o $(BIN)/librowraft.so ./capi

.PHONY: test-python
test-python: build librowraft ## tests of the Python package on real servers (ARGS="-k scan"; needs Debian's python3-pytest, python3-numpy and python3-torch, or PYTHON of a venv)
	cd python && ROWRAFT_LIBRARY=$(CURDIR)/$(BIN)/librowraft.so ROWRAFT_BINARY=$(CURDIR)/$(BIN)/rowraft PYTHONPATH=. \
		PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -q -p no:cacheprovider $(ARGS)

.PHONY: test-python-torch
test-python-torch: $(TORCH_ENV) ## the same with a current PyTorch and TorchRec (5.5 GB in .cache), and mypy with its types
	$(MAKE) --no-print-directory test-python lint-python PYTHON=$</bin/python
	$</bin/python -c 'import torchrec' # or its test would be skipped

.PHONY: bench-python
bench-python: build librowraft ## pull and push from Python next to rowraft-bench, on one cluster (ARGS="--rounds 5"; 2 minutes)
	ROWRAFT_LIBRARY=$(CURDIR)/$(BIN)/librowraft.so ROWRAFT_BINARY=$(CURDIR)/$(BIN)/rowraft PYTHONPATH=python \
		PYTHONDONTWRITEBYTECODE=1 $(PYTHON) bench/python.py --bench $(BIN)/rowraft-bench $(ARGS)

.PHONY: bench-python-step
bench-python-step: build librowraft $(TORCH_ENV) ## a step of a DLRM on a local cluster ÷ the same with nn.EmbeddingBag in process (ARGS="--rounds 7"; 3 minutes)
	ROWRAFT_LIBRARY=$(CURDIR)/$(BIN)/librowraft.so ROWRAFT_BINARY=$(CURDIR)/$(BIN)/rowraft PYTHONPATH=python \
		PYTHONDONTWRITEBYTECODE=1 $(TORCH_ENV)/bin/python -W ignore bench/python_step.py $(ARGS)

# Nothing in the wheel depends on the directory or the symbols of this machine. The server needs no C library; the
# client resolves names as the server does, and needs no function of a new glibc.
.PHONY: wheel
wheel: ## bin/wheel/rowraft-*.whl: the Python package with the library and the server (x86-64, needs gcc)
	rm -rf $(BIN)/wheel && mkdir -p $(BIN)/wheel/lib
	CGO_CFLAGS='-O2 -include $(CURDIR)/capi/glibc.h' $(CSHARED) -tags netgo -trimpath -ldflags '-s -w -X main.version=$(WHEEL_VERSION)' -o $(BIN)/wheel/lib/librowraft.so ./capi
	GOEXPERIMENT=$(SIMD) CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(WHEEL_VERSION)' -o $(BIN)/wheel/lib/ ./cmd/rowraft
	$(PYTHON) python/backend.py $(BIN)/wheel

.PHONY: test-wheel
test-wheel: wheel $(WHEEL_ENV) ## auditwheel, twine, and the tests of the client with the wheel in CPython 3.11 to 3.13, those that are here
	TOOLS=$(WHEEL_ENV)/bin scripts/test-wheel.sh $(BIN)/wheel/*.whl

##@ Check

.PHONY: lint
lint: fmt-check vet staticcheck proto-lint lint-python ## gofmt, go vet, staticcheck, buf lint, buf breaking, ruff, mypy

.PHONY: fmt-check
fmt-check: ## fail if gofmt would change a file
	@files=$$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [ -e "$$f" ] && echo "$$f"; done); \
	bad=$$(gofmt -l $$files); \
	if [ -n "$$bad" ]; then echo "gofmt -w these:" >&2; echo "$$bad" >&2; exit 1; fi

# A package without files of its own for one build is the same source in both, so it is checked once.
.PHONY: vet
vet: ## go vet: everything with SIMD, what differs without it
	GOEXPERIMENT=$(SIMD) go vet ./...
	$(if $(SIMD),GOEXPERIMENT= go vet $(PLAIN_DIFFERS))

.PHONY: staticcheck
staticcheck: $(TOOLS)/staticcheck-$(STATICCHECK_VERSION) ## staticcheck: everything with SIMD, what differs without it
	GOEXPERIMENT=$(SIMD) $< ./...
	$(if $(SIMD),GOEXPERIMENT= $< $(PLAIN_DIFFERS))

.PHONY: proto-lint
proto-lint: $(TOOLS)/buf-$(BUF_VERSION) ## buf lint; buf breaking against the last release
	$< lint
	scripts/proto-breaking.sh $<

# mypy reads the types of numpy and PyTorch in the packages of PYTHON.
.PHONY: lint-python
lint-python: $(PYLINT_ENV) ## ruff check, ruff format, mypy --strict
	$</bin/ruff check --no-cache -q --config python/pyproject.toml python bench examples/pytorch examples/export
	$</bin/ruff format --no-cache -q --config python/pyproject.toml --check python bench examples/pytorch examples/export
	cd python && $</bin/python -m mypy --python-executable $(PYTHON) --cache-dir $(CURDIR)/.cache/mypy

.PHONY: mod-check
mod-check: ## go.mod and go.sum are tidy and the module cache is intact
	go mod tidy -diff
	go mod verify

.PHONY: verify
verify: ## everything CI runs, with the time each stage took
	scripts/verify.sh

.PHONY: verify-full
verify-full: ## hours, before a release: every e2e test, more seeds, all packages under the race detector and without SIMD, arm64, fuzzing, a soak
	scripts/verify.sh --full

##@ Generate

GEN_TOOLS = $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION)

.PHONY: gen
gen: $(GEN_TOOLS) ## regenerate proto/**/*.pb.go (needs protoc: apt install protobuf-compiler)
	scripts/gen.sh proto $(GEN_TOOLS)

.PHONY: gen-check
gen-check: $(GEN_TOOLS) ## fail if `make gen` would change a committed file
	scripts/gen.sh --check $(GEN_TOOLS)

# protoc-gen-go is part of the protobuf module, so go.mod decides its version.
$(TOOLS)/protoc-gen-go: go.mod
	go build -o $@ google.golang.org/protobuf/cmd/protoc-gen-go
	@touch $@

$(TOOLS)/protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION):
	$(call install-tool,google.golang.org/grpc/cmd/protoc-gen-go-grpc@$(PROTOC_GEN_GO_GRPC_VERSION))

$(TOOLS)/staticcheck-$(STATICCHECK_VERSION):
	$(call install-tool,honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION))

$(TOOLS)/buf-$(BUF_VERSION):
	$(call install-tool,github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION))

$(PYLINT_ENV):
	$(call python-env,ruff==$(RUFF_VERSION) mypy==$(MYPY_VERSION))

$(WHEEL_ENV):
	$(call python-env,auditwheel==$(AUDITWHEEL_VERSION) twine==$(TWINE_VERSION))

# TorchRec comes without the packages that it needs on several machines only.
$(TORCH_ENV):
	$(call python-env,$(TORCH_PACKAGES),$(TORCHREC_PACKAGES))

# python-env installs packages into the environment $@, and others without what they need. A failure leaves nothing.
define python-env
@rm -rf $@
trap '[ -f $@/complete ] || rm -rf $@' EXIT; \
$(PYTHON) -m venv $@; \
$@/bin/pip install -q --disable-pip-version-check --no-cache-dir $(1); \
$(if $(2),$@/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-deps $(2);) \
touch $@/complete
endef

# install-tool builds one command at its version and keeps it under the target's name.
define install-tool
@mkdir -p $(TOOLS)
dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
GOFLAGS= GOEXPERIMENT= GOBIN="$$dir" go install $(1) && mv "$$dir"/* $@
endef

##@ Housekeeping

.PHONY: clean
clean: ## remove what make built; caches of Go stay
	rm -rf $(BIN) .cache

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-zA-Z-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
