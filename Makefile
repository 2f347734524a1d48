# make demo   set up everything and run the main job
# make test   set up everything and pass the tests
# The rest goes deeper; each line says into what.

GO ?= go
staticcheck = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build demo setup-all test check race race-build ofi sim sim-night fuzz soak huge misuses bench profile bench-peers bench-hosts bench-launch bench-compress bench-survive trials kills experiments experiments-short clean

build: ## all commands and examples, in bin/
	$(GO) build -o bin/ ./cmd/... ./examples/...

demo: ## compress Go's source tree with four ranks; again while one is killed and one is moved; and while a host is flooded
	tools/setup go zstd
	$(MAKE) --no-print-directory build
	tools/demo

setup-all: ## install what any test uses: without it some are skipped
	tools/setup all

test: ## the tests, in a few minutes
	tools/setup go zstd
	$(GO) test -timeout 10m ./...
	@tools/setup --tell all

check: ## vet, format, staticcheck
	$(GO) vet ./...
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt would change: $$unformatted"; exit 1; }
	GOGC=400 $(staticcheck) ./...

# The race detector need not look into the arithmetic of ciphers, which costs each handshake of
# agents many times as much; nor unmap what it knows of each slice of 16 kB that is made, which
# the kernel then makes anew page by page; nor wait a second at the end of each process.
race = -race -gcflags='crypto/internal/fips140/...=-race=0'
race_test = GORACE="clear_shadow_mmap_threshold=4194304 atexit_sleep_ms=100" $(GO) test $(race)

RACE_OPTIONS ?=
race: ## the tests under the race detector; RACE_OPTIONS=-short is a short pass
	tools/setup go cc
	$(race_test) $(RACE_OPTIONS) ./...

race-build: ## what race compiles, and no more
	tools/setup go cc
	$(GO) list $(race) -test -deps -export ./... >/dev/null

ofi: ## the RDMA provider over libfabric: its tests under the race detector, and libfabric bare beside it
	tools/setup go cc ofi
	@if pkg-config --exists libfabric && [ "$$($(GO) env CGO_ENABLED)" = 1 ]; then \
		$(GO) vet -tags ofi ./transport/rdma/libfabric/... && \
		$(race_test) -tags ofi ./transport/rdma/libfabric/... && \
		$(GO) test -tags ofi -run '^$$' -bench Bare -benchtime 0.5s ./transport/rdma/libfabric; \
	else echo "ofi: skipped: it takes cgo and libfabric-dev"; fi

SEEDS ?= 10000
sim: ## whole jobs, the leader, the ledger and agreement step by step, from SEEDS seeds each
	tools/sim $(SEEDS)

NIGHT_SEEDS ?= 100000
sim-night: ## the same for a night: NIGHT_SEEDS seeds each
	tools/sim $(NIGHT_SEEDS)

INPUTS ?= 200000
fuzz: ## every parser, INPUTS inputs each; a tenth of them for what moves megabytes for each
	tools/fuzz $(INPUTS)

MESSAGES ?= 10000000
soak: ## MESSAGES messages among four ranks while connections are cut
	$(GO) test ./internal/engine -run TestEveryMessageOnceWhileConnectionsAreCut -v -timeout 120m -soak $(MESSAGES) -soak-cut 50ms -soak-network tcp

huge: ## messages of more than 4 GiB, over every way; takes 9 GB of memory
	$(GO) test ./internal/huge -count 1 -v -timeout 30m -huge

misuses: ## every wrong program of the corpus, one after another: each is explained within a second
	$(GO) test ./internal/misuse -run TestWrongProgramsAreExplained -count 1 -timeout 60m -within 1s -table "$$PWD/docs/experiments/results/misuses.md"

bench: ## the Go benchmarks
	$(GO) test -run '^$$' -bench . -benchtime 0.5s ./...

profile: ## where mpiv spends its time, for the compiler: cmd/mpivbench/default.pgo
	tools/profile

bench-peers: ## mpiv beside Open MPI and MPICH: CSV, tables and plots in out/bench
	tools/setup go openmpi mpich
	$(MAKE) --no-print-directory build
	$(GO) run ./cmd/mpivpeers

bench-hosts: ## the same between two hosts of a lab, unshaped, and with TLS
	tools/setup go openmpi mpich
	$(MAKE) --no-print-directory build
	PATH="$$PWD/bin:$$PATH" bin/mpivlab --hosts X,Y --lan 0 -- mpivpeers -transports lan -tests latency,bw,bibw,mbw_mr -out out/bench/hosts

bench-launch: ## how long jobs on 1 to 32 hosts take to start, by mpivlab exec and by ssh
	$(GO) test ./internal/launchtest -run '^$$' -bench Launch -benchtime 5x

bench-compress: ## what messages cost the compression: ranks against goroutines of one process
	$(MAKE) --no-print-directory build
	bin/compress --compare
	bin/mpivrun -n 4 bin/compress --compare

bench-survive: ## what surviving costs: levels against none, and live moves
	$(MAKE) --no-print-directory build
	tools/bench-survive >docs/experiments/results/survive-two-cores.md

trials: ## the trials in the lab: claims, CSV and plots in out/trials; some ten minutes
	tools/setup go iperf3 nft
	$(MAKE) --no-print-directory build
	$(GO) build -tags libp2p -o bin/ ./cmd/mpivbench
	bin/mpivtrials $(TRIALS_OPTIONS) all

KILLS ?= 120
kills: ## four programs over three transports, KILLS kills each: the output must be the same to the bit
	$(MAKE) --no-print-directory build
	seed=100; for program in heat2d compress farm wander; do for transport in shm tcp quic; do seed=$$((seed + 1)); \
	  bin/mpivtrials -out out/kills/$$program-$$transport -seed $$seed -kills $(KILLS) -program $$program -transport $$transport $(TRIALS_OPTIONS) survive || exit; \
	done; done

experiments: ## the experiments of the paper on task migration: claims, CSV and plots in out/trials
	$(MAKE) --no-print-directory build
	bin/mpivtrials $(TRIALS_OPTIONS) experiments

experiments-short: ## all of them in their shortest form, in four minutes; no figure is judged that hangs on how fast the machine is
	$(MAKE) --no-print-directory build
	bin/mpivtrials -out out/short -short -untimed $(TRIALS_OPTIONS) experiments

experiment-%: ## one of them, such as experiment-M2
	$(MAKE) --no-print-directory build
	bin/mpivtrials $(TRIALS_OPTIONS) $*

clean:
	rm -rf bin out
