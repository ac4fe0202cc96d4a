# Everything a developer runs. `make help` lists it.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
BIN := $(VENV)/bin
# The first Python 3.11+ among the usual names; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Passed on to what a target runs: make demo ARGS='--rows 20000', make test ARGS='-k rebalance'.
ARGS ?=
# Where pytest leaves its junit files, if anywhere (.ci/run sets it).
REPORTS ?=
junit = $(if $(REPORTS),--junit-xml=$(REPORTS)/$(1).xml)

# The tests start many processes, and each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

# The tests wait much of their time, so three run at once even on two cores. A fourth worker would only
# collect all short tests once more; of the long ones it would start more Sparks than two cores can, and
# Spark gives a Python worker ten seconds. A choice of tests (by -k, a path, --lf) starts sooner in one
# process. WORKERS=... overrides both; 0 is one process.
WORKERS ?= $(if $(filter -k% --lf tests/% ./%,$(ARGS)),0,3)
# pytest-xdist 3.8 waits for ever for a worker that replaces a crashed one (its issue 1323).
pytest = $(BIN)/pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0

# What keeps two descriptions of one thing equal: rules and imports, openapi.yaml and what the app
# serves, migrations and the tables that the store uses; and lint. They are among the short tests.
AGREEMENTS := tests/architecture tests/api/test_openapi.py tests/migrations \
	tests/broker/postgres/test_migrations.py tests/broker/store/test_migrations.py

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS='...' is passed on, e.g.  make demo ARGS='--rows 20000'"

# An environment is made in layers (deploy/environment.py): what the demo needs, what the short tests
# need beyond that, and so on. A layer is brought up to date when its lock or a package changes.
LAYERS := demo test long docs release bench
GROUPS := uv build $(filter-out demo,$(LAYERS))

.PHONY: setup
setup: layer-test ## .venv with both packages, editable, all extras, and the tools of the short tests

.PHONY: owned $(LAYERS:%=layer-%)
$(LAYERS:%=layer-%): layer-%: $(VENV)/.%-layer
owned:
	@test ! -e $(VENV)/.checkout || test "$$(cat $(VENV)/.checkout)" = "$(CURDIR)" || { echo "$(VENV) belongs to the checkout \
	$$(cat $(VENV)/.checkout), and this one is $(CURDIR). Remove it, or choose another with VENV=DIRECTORY." >&2; exit 1; }

$(LAYERS:%=$(VENV)/.%-layer): $(VENV)/.%-layer: deploy/locks/%.txt deploy/locks/build.txt deploy/locks/uv.txt \
		pyproject.toml deploy/server/pyproject.toml | owned
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Counterpoise needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) deploy/environment.py $(VENV) $*

.PHONY: demo
demo: layer-$(if $(findstring delta,$(ARGS)),test,demo) ## two PySpark applications share a real queue while they come and go; SABOTAGE=skip
	@$(BIN)/counterpoise demo $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

.PHONY: demo-split
demo-split: layer-demo ## a hot partition is split twice and merged back while consumers run; SABOTAGE=early
	@$(BIN)/counterpoise demo --split $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

# Each of the workers would compile all the tests, at the same moment.
tests/__pycache__: | layer-test
	@echo "==> the tests are compiled (once)"
	@$(BIN)/pytest --quiet --collect-only >/dev/null || true  # the run says what is wrong

.PHONY: test
test: layer-test | tests/__pycache__ ## the short tests, lint among them
	$(pytest) -m 'not long' $(call junit,short) $(ARGS)

# The long tests start a hundred Sparks: with this file each starts in half the time.
CLASSES := $(VENV)/java-for-tests/spark.jsa
$(CLASSES): | layer-test
	@echo "==> $@: the classes of Spark (once, half a minute)"
	@$(BIN)/python -m tests.counterpoise.spark.archive

.PHONY: classes
classes: layer-test $(CLASSES) ## an archive of Spark's classes, with which the long tests start it

# Apache Kafka and all that it needs, in .venv/kafka. Maven's own settings choose the repository.
KAFKA := $(VENV)/kafka/.installed
$(KAFKA): tests/kafka.pom.xml | layer-test
	@command -v mvn >/dev/null || { echo "make kafka needs Maven (Debian: apt-get install maven)" >&2; exit 1; }
	@echo "==> $(@D): Apache Kafka (once)"
	@rm -rf $(@D)
	@mvn --quiet --batch-mode --file $< dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(abspath $(@D))
	@$(BIN)/python -m tests.kafka_archive
	@touch $@

.PHONY: kafka
kafka: layer-test $(KAFKA) ## Apache Kafka for the long tests, from Maven

# The clients of docs/examples/clients, in .venv/clients. Go compiles its own library once, for a minute or more.
OTHERS := docs/examples/clients
CLIENTS := $(VENV)/clients/.installed
$(CLIENTS): $(wildcard $(OTHERS)/go/* $(OTHERS)/node/*.js*) | layer-test
	@command -v go >/dev/null && command -v npm >/dev/null || { echo "make clients needs Go and Node.js (Debian: apt-get install golang-go nodejs npm)" >&2; exit 1; }
	@echo "==> $(@D): clients in Go and JavaScript (once)"
	@mkdir -p $(@D)/node && cp $(OTHERS)/node/*.js* $(@D)/node
	@npm --prefix $(@D)/node ci --silent --no-audit --no-fund
	@cd $(OTHERS)/go && go build -o $(abspath $(@D))/go-client .
	@touch $@

.PHONY: clients
clients: layer-test $(CLIENTS) ## the example clients in Go and JavaScript, for the long tests

# Which third of the matrices (tests/rotation.py); the commit's hash chooses one.
PART ?= commit

.PHONY: test-long
test-long: layer-test layer-long $(CLASSES) $(KAFKA) $(CLIENTS) ## the long tests; of matrices and properties a third: PART=2/3
	$(pytest) --no-loadscope-reorder -m 'long or property' $(if $(PART),--part $(PART)) $(call junit,long) $(ARGS)

.PHONY: newcomer
newcomer: layer-test layer-long $(CLASSES) $(KAFKA) $(CLIENTS) ## a new user's first two hours: the tests that tests/newcomer.md names
	$(pytest) --no-loadscope-reorder $$(grep -oE 'tests/[a-z_/]+\.py::\w+' tests/newcomer.md | sort -u) $(ARGS)

.PHONY: test-all
test-all: test ## all tests; a release needs it
	$(MAKE) test-long PART=

# An environment of its own, made anew each time.
LOWEST ?= .lowest

.PHONY: test-lowest
test-lowest: layer-test layer-long ## a choice of tests with the lowest versions that both packages allow, in LOWEST
	$(BIN)/python deploy/lowest.py $(LOWEST) $(ARGS)

.PHONY: coverage
coverage: layer-test ## the short tests, and which lines and branches of both packages they reach
	$(pytest) -m 'not long' --cov --cov-report=term $(ARGS)

.PHONY: lint
lint: layer-test ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: shape
shape: layer-test ## what no rule decides: long and tiny modules, names defined twice, forwarders
	@$(BIN)/python -m tests.architecture.shape

.PHONY: check
check: layer-test ## lint, import rules, openapi.yaml, migrations
	$(BIN)/pytest -q -m 'not long' $(AGREEMENTS)

# Where the site is built.
SITE ?= reports/site

# How many simulated runs, or which (500-600); SEED=7 shows one.
SEEDS ?= 1000

.PHONY: sim
sim: layer-test ## play simulated runs: SEEDS=1000, SEEDS=500-600, or SEED=7 with its transcript
	@$(BIN)/python -m tests.simulation $(if $(SEED),seed $(SEED),seeds $(SEEDS)) $(ARGS)

.PHONY: sim-first
sim-first: layer-test ## which seed is the first to find each planted bug; ARGS=--search: look anew
	@$(BIN)/python -m tests.simulation first $(ARGS)

.PHONY: sim-long
sim-long: layer-test ## play simulated runs until interrupted, from where it stopped last time
	@nice -n 19 $(BIN)/python -m tests.simulation long $(ARGS)

.PHONY: openapi
openapi: layer-demo ## write openapi.yaml anew from what the app serves
	@$(BIN)/python -m api.openapi > openapi.yaml.new && mv openapi.yaml.new openapi.yaml

.PHONY: reference
reference: layer-test ## write the options in docs/commands.md, and docs/api, anew from the code
	@$(BIN)/python docs/commands.py
	@$(BIN)/python docs/api_pages.py

.PHONY: manifests
manifests: layer-test layer-long ## write deploy/kubernetes/service.yaml anew from the Helm chart
	@$(BIN)/python deploy/manifests.py > service.yaml.new && mv service.yaml.new deploy/kubernetes/service.yaml

.PHONY: serve
serve: layer-demo ## run the service on 127.0.0.1:8640
	@$(BIN)/counterpoise serve $(ARGS)

.PHONY: faults
faults: layer-test ## kill, freeze and cut off real processes, up to 20 minutes (docs/faults.md)
	@$(BIN)/python -m tests.faults $(ARGS)

.PHONY: soak
soak: layer-test ## all attacks at once for an hour, beside honest consumers (ARGS='--seconds 600')
	@$(BIN)/python -m tests.attacks.soak $(ARGS)

.PHONY: model
model: layer-test ## check the models with spin (docs/model.md)
	@$(BIN)/python -m tests.model.checker

.PHONY: site
site: layer-demo layer-docs ## build the documentation's site into SITE, strict about links; ARGS='--version 0.1' adds a version there
	@$(BIN)/python deploy/site/build.py $(SITE) $(ARGS)
	@echo "look at it: $(BIN)/python -m http.server --directory $(SITE)"

# Where the files of a release go: a new or empty directory.
RELEASE ?= dist

.PHONY: release
release: layer-test layer-release ## make the files of a release in RELEASE: from HEAD as a dry run, or TAG=v0.1.0
	@$(BIN)/python deploy/release $(RELEASE) $(if $(TAG),--tag $(TAG))

.PHONY: pictures
pictures: layer-test ## photograph the dashboard for the README (needs chromium), draw the architecture
	@$(BIN)/python docs/pictures/architecture.py
	@$(BIN)/python -m tests.browser.pictures docs/pictures $(ARGS)

.PHONY: bench
bench: layer-test layer-bench ## run the benchmarks; writes benchmarks/RESULTS.md and plots (ARGS=NAME: only shows one)
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-quick
bench-quick: layer-test layer-bench ## the same with fewer rounds, in under three minutes
	@$(BIN)/python -m benchmarks --quick

# Without what the installed Spark has itself.
CONNECTOR := $(VENV)/kafka-source/.installed
$(CONNECTOR): benchmarks/kafka_source.pom.xml $(KAFKA)
	@echo "==> $(@D): Spark's own Kafka source (once)"
	@rm -rf $(@D)
	@mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DincludeScope=runtime \
		-DincludeGroupIds=org.apache.spark,org.apache.kafka,org.apache.commons \
		-DexcludeArtifactIds=spark-tags_2.13 -DoutputDirectory=$(abspath $(@D))
	@touch $@

.PHONY: bench-kafka
bench-kafka: layer-test layer-bench $(CONNECTOR) ## our source beside Spark's own on a Kafka from Maven; its section of RESULTS.md
	@$(BIN)/python -m benchmarks.kafka_source --write $(ARGS)

.PHONY: bench-kafka-groups
bench-kafka-groups: layer-test layer-bench $(KAFKA) ## our service beside the groups of a Kafka from Maven; its section of RESULTS.md
	@$(BIN)/python -m benchmarks.coordinator --write $(ARGS)

compile = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-package counterpoise --no-emit-package counterpoise-server \
	--custom-compile-command 'make lock'
PROJECTS := pyproject.toml deploy/server/pyproject.toml

# Each layer has the versions of constraints.txt, so they fit together in every combination.
.PHONY: lock
lock: layer-demo ## choose versions anew: deploy/constraints.txt, deploy/locks, benchmarks/peers.txt
	$(compile) --upgrade --all-extras $(GROUPS:%=--group %) -o deploy/constraints.txt $(PROJECTS)
	$(MAKE) locks
	$(compile) --upgrade -o benchmarks/peers.txt benchmarks/peers.in

.PHONY: locks
locks: ## choose what each layer of constraints.txt consists of, and no other versions
	$(compile) --constraint deploy/constraints.txt --extra demo -o deploy/locks/demo.txt $(PROJECTS)
	$(compile) --constraint deploy/constraints.txt --all-extras --group test -o deploy/locks/test.txt $(PROJECTS)
	for version in 4.0 4.1 4.2; do echo "pyspark==$$version.*" | \
		$(compile) --no-deps -o deploy/locks/spark-$$version.txt -; done
	for group in $(filter-out test,$(GROUPS)); do \
		$(compile) --constraint deploy/constraints.txt --group $$group -o deploy/locks/$$group.txt; done
