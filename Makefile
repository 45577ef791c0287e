# Berth's commands. `make` alone explains them.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

# The SQLite driver is C. Without this Go would leave it out in silence where it
# finds no compiler, and the program would fail when it opens the database.
export CGO_ENABLED = 1

# PKG and TESTFLAGS narrow or change what is tested:
#   make test PKG=./pkg/store/... TESTFLAGS='-count=1 -run Claim'
PKG ?= ./...
TESTFLAGS ?=
# ARGS are handed to `berth up` by `make run`, and to the test by `make compose-test`.
ARGS ?=
# SECRETS is where `make secrets` puts them.
SECRETS ?= deploy/secrets

TOOL := go tool -modfile=tools/go.mod
# Not all of the tree: web/node_modules may hold Go files of others.
GO_FOLDERS := $(wildcard cmd db pkg scripts test)
# Shell scripts of the project.
SCRIPTS := $(wildcard scripts/*.sh deploy/*.sh) .ci/run

.PHONY: help
help: ## Explain the targets
	@echo 'make <target>, where target is one of:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done
	@echo
	@echo 'Missing packages are installed after saying so (Debian, Ubuntu; root or sudo -n);'
	@echo 'BERTH_INSTALL=0 forbids that. BERTH_TEST_POSTGRES_URL names a server to test on.'

.PHONY: build
build: deps-cc ## Compile all programs into bin/
	@mkdir -p bin
	go build -o bin/ ./cmd/...

# Exit code 3 of install-deps.sh: no Chromium, and the reason has been said.
.PHONY: run
run: deps-cc ## Run Berth on this machine: SQLite, all workers, one host (ARGS='--flag ...')
	@scripts/install-deps.sh chromium || { [ $$? -eq 3 ] && echo 'berth: going on with process devices only.' >&2; }
	@mkdir -p bin
	go build -o bin/berth ./cmd/berth
	@exec ./bin/berth up $(ARGS)

.PHONY: test
test: deps-test vet bin/with-postgres bin/gotest ## Run all tests, on SQLite and on a real PostgreSQL
	@bin/with-postgres bin/gotest -timeout 20m $(TESTFLAGS) $(PKG)

.PHONY: race
race: deps-test bin/with-postgres bin/gotest ## Run all tests under the race detector
	@bin/with-postgres bin/gotest -race -timeout 20m $(TESTFLAGS) $(PKG)

.PHONY: kill-test
kill-test: deps-test bin/gotest ## Kill each process and the database at ten random instants, and more (10 min; BERTH_SEED=n)
	@BERTH_LONG_TESTS=1 bin/gotest -count=1 -timeout 30m $(TESTFLAGS) ./test/kill

# N tasks: make bench-bulk N=100000
N ?= 1000000
.PHONY: bench-bulk
bench-bulk: deps-test ## Cancel N queued tasks (1000000) by filter, killing API and leasekeeper in between, and time lists
	@BERTH_BULK_TASKS=$(N) go test -count=1 -timeout 60m -v -run TestBulkCancelGoesOn $(TESTFLAGS) ./test/kill

# FUZZTIME and FUZZ narrow it: make fuzz FUZZTIME=5s FUZZ=FuzzVerify
FUZZTIME ?= 60s
FUZZ ?= .
.PHONY: fuzz
fuzz: deps-test bin/with-postgres ## Run every fuzz target for FUZZTIME (60s)
	@mkdir -p build
	@bin/with-postgres scripts/fuzz.sh $(FUZZTIME) $(FUZZ)

.PHONY: security
security: deps-test bin/with-postgres bin/gotest ## Run all that speaks for Berth's security: tests, fuzz, linters, known vulnerabilities
	@scripts/security.sh

.PHONY: vulncheck
vulncheck: deps-cc ## Look for known vulnerabilities that the programs reach (tools/vuln/allow.txt)
	@mkdir -p build
	@go run ./scripts/vulncheck

.PHONY: smoke
smoke: deps-cc deps-chromium ## Start what `make run` starts, run the first task, look at the result
	@go run ./test/smoke

.PHONY: secrets
secrets: ## Make the secrets that docker-compose.yml mounts, once (SECRETS=folder)
	@deploy/secrets.sh $(SECRETS)

# ARGS='-build=false -version dev' tests images that are there.
.PHONY: compose-test
compose-test: deps-cc ## Prove docker-compose.yml: up, work, scale, kill -9 in each container, down
	@go run ./test/compose $(ARGS)

.PHONY: lint
lint: vet lint-shell lint-format lint-go ## Check format, imports and habits (first run compiles the linter)

.PHONY: lint-format
lint-format: ## Check that all Go files are formatted
	@files=$$($(TOOL) gofumpt -l $(GO_FOLDERS)) || exit 1; \
		[ -z "$$files" ] || { echo 'not formatted, run make fmt:'; echo "$$files"; exit 1; }

.PHONY: lint-go
lint-go: deps-cc ## Run golangci-lint
	@$(TOOL) golangci-lint run $(PKG)

.PHONY: vet
vet: deps-cc ## Run go vet
	@go vet $(PKG)

.PHONY: lint-shell
lint-shell: ## Check the shell scripts' syntax
	@for script in $(SCRIPTS); do \
		case $$(head -n 1 $$script) in *bash*) bash -n $$script ;; *) sh -n $$script ;; esac || exit 1; \
	done

.PHONY: fmt
fmt: ## Format all Go files
	@$(TOOL) gofumpt -w $(GO_FOLDERS)

.PHONY: generate
generate: ## Write the generated files again
	@go generate $(PKG)

.PHONY: ci-times
ci-times: ## Measure what each part of CI costs and write it into docs/ci.md
	@scripts/ci-times.sh docs/ci.md

.PHONY: deps-postgres deps-chromium deps-cc deps-test
deps-postgres: ## Install a PostgreSQL server, where missing
	@scripts/install-deps.sh postgres
deps-chromium: ## Install Chromium, where missing
	@scripts/install-deps.sh chromium
deps-cc: ## Install a C compiler, where missing
	@scripts/install-deps.sh cc
deps-test:
	@scripts/install-deps.sh cc postgres chromium python3

# Go knows best whether these are up to date.
.PHONY: bin/with-postgres bin/gotest
bin/with-postgres:
	@go build -o $@ ./pkg/pgtest/cmd/with-postgres
bin/gotest:
	@go build -o $@ ./scripts/gotest

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin build
