# Hawser. `make help` lists the targets. CI calls only these.

SHELL := /bin/bash
GO ?= go
BIN := bin
# What packages hold. hawser-faulty and hawser-rdma-faulty are for tests and the
# demo, and are built from test/faulty and plugins/rdma/faulty: no package takes
# them.
PLUGINS := tcp rpcfallback rdma mnnvl
TIMED := test/timed.sh
# go-nvml's header marks functions as deprecated that its own code calls.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := help
.PHONY: help deps build demo lab-rdma lab-smoke test race scenarios scenarios-long vet lint generate generate-check fuzz sim mutants bench gpu-test clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

deps: ## install what the build and the tests need (Debian packages, Go modules)
	@test/deps.sh
	$(GO) mod download

build: deps ## build hawser, the plugins and hawser-faulty into bin/
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/hawser ./cmd/hawser
	@for p in $(PLUGINS); do echo "$(GO) build -o $(BIN)/hawser-$$p ./plugins/$$p"; \
		$(GO) build -o $(BIN)/hawser-$$p ./plugins/$$p || exit 1; done
	$(GO) build -o $(BIN)/hawser-faulty ./test/faulty
	$(GO) build -o $(BIN)/hawser-rdma-faulty ./plugins/rdma/faulty

demo: build ## two nodes, 4000 notifications a row, faults: the table of what arrived
	$(BIN)/hawser demo

lab-rdma: build ## on two virtual hosts with real verbs (Soft-RoCE): the rdma plugin's suite, the scenarios of memory, the table of RDMA's rows; an hour
	$(GO) run ./test/rdmalab/run -bin $(BIN)

lab-smoke: build ## its short form, part of test: the rdma plugin's suite on real verbs, and two rows
	@$(GO) run ./test/rdmalab/run -bin $(BIN) -smoke

test: ## everything that CI runs: vet, generated code, all tests with -race
	@$(TIMED) deps $(MAKE) --no-print-directory deps
	@$(TIMED) vet $(MAKE) --no-print-directory vet
	@$(TIMED) generate-check $(MAKE) --no-print-directory generate-check
	@$(TIMED) race $(MAKE) --no-print-directory race
	@$(TIMED) scenarios $(MAKE) --no-print-directory scenarios
	@$(TIMED) lab-smoke $(MAKE) --no-print-directory lab-smoke
	@$(TIMED) --summary

race: ## all tests but the scenarios, with the race detector
	@test/gotest.sh -race $$($(GO) list ./... | grep -v /test/scenarios)

scenarios: ## the whole system: real processes, real faults, every row of the demo
	@test/gotest.sh -race -count=1 ./test/scenarios

scenarios-long: ## those of memory, at full length: 200 fences, 1000 registrations, 50 restarts and 200 kills over each transport
	@HAWSER_LONG=1 test/gotest.sh -race -count=1 -timeout 60m -run 'Test(GPU)?(Memory|Scenario(29|4))' ./test/scenarios

vet: ## go vet here and for a platform that only compiles, and gofmt
	$(GO) vet ./...
	cd bench && $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./engine/... ./sdk/...
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }

lint: ## golangci-lint at its pinned version, and linux/arm64 (minutes the first time)
	GOOS=linux GOARCH=arm64 $(GO) vet ./...
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run ./...

generate: ## regenerate the protobuf code
	$(GO) run ./test/protogen

generate-check: ## fail if the protobuf code is not what the generators make now
	@test/generate-check.sh

FUZZTIME ?= 20s
fuzz: ## every fuzz target for FUZZTIME (20s) each
	@test/fuzz.sh $(FUZZTIME)

SEEDS ?= 10000
SEED ?=
sim: ## the simulation: SEEDS (10000) seeds, or SEED alone with its trace
	SIM_SEEDS=$(SEEDS) SIM_SEED=$(SEED) $(GO) test -count=1 -timeout 3h -run TestSimulation ./test/sim

MUTANTS ?=
mutants: ## remove one guard at a time: a named test must turn red
	$(GO) run ./test/mutants $(MUTANTS)

bench: build ## ratios against plain programs, into docs/performance.md
	cd bench && $(GO) run . -bin ../$(BIN) -out ../docs/performance.md

MNNVL := ./plugins/mnnvl
gpu-test: ## build into bin/gpu what a machine with two GPUs runs without Go: bin/gpu/run.sh
	@rm -rf $(BIN)/gpu && mkdir -p $(BIN)/gpu
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/libcuda.test ./internal/cuda/libcuda
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/nvml.test $(MNNVL)/internal/nvml
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/mnnvl.test $(MNNVL)/mnnvltransport
	$(GO) build -ldflags '-s -w' -o $(BIN)/gpu/hawser-mnnvl $(MNNVL)
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/cuda.test ./engine/cuda
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/kvtransfer.test ./examples/kvtransfer
	$(GO) test -c -ldflags '-s -w' -o $(BIN)/gpu/scenarios.test ./test/scenarios
	$(GO) build -ldflags '-s -w' -o $(BIN)/gpu/hawser-tcp ./plugins/tcp
	$(GO) build -ldflags '-s -w' -o $(BIN)/gpu/hawser-rpcfallback ./plugins/rpcfallback
	$(GO) build -ldflags '-s -w' -tags hawser_address_only -o $(BIN)/gpu/hawser-mnnvl-address-only $(MNNVL)
	gzip -f $(BIN)/gpu/*.test $(BIN)/gpu/hawser-*
	cp test/gpu/run.sh $(BIN)/gpu/
	@echo "carry $(BIN)/gpu to the machine and start run.sh there"

clean: ## remove what was built
	rm -rf $(BIN) .tmp
