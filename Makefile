# SPDX-License-Identifier: Apache-2.0
# Everything here works on a machine that has Python 3.11 or newer, pip and make. `make help` lists the targets.
#
# Three stamps in .venv say what is installed: .installed-run is what a demo needs (no development tools, no Spark),
# .installed-pipeline adds Spark, .installed-dev everything else. They are made again when a pyproject.toml changes.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: demo demo-report example test quick simulate pythons interop clients lint conformance bench scorecard soak fuzz proto docs dist deb lock sbom clean help

BIN      := .venv/bin
RUN      := .venv/.installed-run
SPARK    := .venv/.installed-pipeline
DEV      := .venv/.installed-dev
AUTOBAHN := build/autobahn-js/.installed
VECTORS  := build/wamp-testsuite/.installed
CLIENTS  := build/up-python/.installed build/someip-py/.installed
PLUGINS  := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/pyproject.toml)))
PROJECTS := pyproject.toml $(PLUGINS:%=%/pyproject.toml)
PIPELINE := pipeline/pyproject.toml
KIT      := tck/pyproject.toml
PIP      := $(BIN)/python -m pip --disable-pip-version-check -q

# The first interpreter that runs and is new enough; a name on PATH may be a shim with nothing behind it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Runs a command quietly: one line when it passes, all of its output when it fails. $(call check,NAME,COMMAND)
check = @printf '%-22s' '$(1)'; \
    if out=$$( $(2) 2>&1 ); then echo ok; else code=$$?; echo FAILED; printf '%s\n' "$$out"; exit $$code; fi

demo: $(RUN) ## the main job in one command: simulated ECUs, Zenoh applications, the streamer (ARGS="--seconds 5 --json")
	@$(BIN)/ustreamer demo $(ARGS)

example: NAME := vehicle
example: $(RUN) ## a small system to copy, see examples/README.md (NAME=minimal ARGS="--events 100")
	@$(BIN)/python -m examples.$(NAME) $(ARGS)

REPORT := build/demo-report

demo-report: $(SPARK) ## the demo, recorded, and what Spark makes of it: build/demo-report/report.html (ARGS="--seconds 30")
	@rm -rf $(REPORT)
	@$(BIN)/ustreamer demo --recordings $(REPORT)/recordings $(ARGS)
	@$(BIN)/ustreamer-pipeline ingest $(REPORT)/recordings $(REPORT)/lake
	@$(BIN)/ustreamer-pipeline report $(REPORT)/lake $(REPORT)
	@echo '$(REPORT)/report.html'

test: lint $(AUTOBAHN) $(VECTORS) $(CLIENTS) ## lint, then all but the long tests, warnings as errors (ARGS="-k throttle -x")
	@$(BIN)/python -m tests $(ARGS)

quick: $(DEV) ## lint and all pure tests, under 90 s on two cores; run it before each commit (ARGS="-k throttle -x")
	@$(BIN)/python -m tests.quick $(ARGS)

SEEDS ?= 0 2000
SOMEIP_SEEDS ?= 0 500

simulate: $(DEV) ## the whole host on virtual time: failures are printed as minimal stories (SEEDS="0 2000" SOMEIP_SEEDS="0 500" ARGS="--jobs 4")
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --someip --seeds $(SOMEIP_SEEDS) $(ARGS)

PYTHONS ?= python3.11 python3.13

pythons: ## the pure tests with each of PYTHONS (PYTHONS="python3.12 python3.13"); fails if one is missing
	@set -e; for python in $(PYTHONS); do \
	    env=build/pythons/$${python##*/}; \
	    $$python -m venv $$env; \
	    $$env/bin/python --version; \
	    $$env/bin/python -m pip --disable-pip-version-check -q install -e '.[zenoh,cli,observe,dev]' $(PLUGINS:%=-e ./%); \
	    $$env/bin/python -m pytest -q $$($$env/bin/python -c 'from tests.quick import PURE; print(*PURE)') $(ARGS); \
	done

INTEROP := $(addprefix tests/e2e/,discovery/test_namespaces.py someip/test_tshark.py someip/test_vsomeip.py)

interop: $(DEV) ## other people's SOME/IP: tshark, ECUs in network namespaces, and vsomeip if VSOMEIP_HOME says where it is
	@command -v tshark >/dev/null && command -v ip >/dev/null || .ci/install tshark iproute2 || \
	    echo 'no tshark, or no ip: what needs them is skipped'
	@$(BIN)/python -m pytest -q -rs $(INTEROP) $(ARGS)

RUST_CLIENTS := build/rust-clients
REFERENCE    := tests/e2e/subscriptions/reference_usubscription
PAHO         := org.eclipse.paho.mqttv5.client

clients: $(DEV) $(CLIENTS) ## the programs of docs/clients.md; builds those in Rust and fetches a library for Java (minutes)
	@command -v cargo >/dev/null || echo 'no cargo: the programs in Rust are skipped'
	@! command -v cargo >/dev/null || for each in examples/clients/rust $(REFERENCE); do \
	    nice cargo build -q --manifest-path $$each/Cargo.toml --target-dir $(RUST_CLIENTS) || exit 1; done
	@command -v mvn >/dev/null || echo 'no mvn: the program in Java is skipped'
	@! command -v mvn >/dev/null || \
	    mvn -q -B dependency:copy -Dartifact=org.eclipse.paho:$(PAHO):1.2.5 -DoutputDirectory=build/java-clients
	@[ ! -d $(RUST_CLIENTS)/debug ] || export RUST_CLIENTS=$(CURDIR)/$(RUST_CLIENTS)/debug \
	    REFERENCE_USUBSCRIPTION=$(CURDIR)/$(RUST_CLIENTS)/debug/reference-usubscription; \
	[ ! -d build/java-clients ] || export PAHO_JAR=$(CURDIR)/build/java-clients/$(PAHO)-1.2.5.jar; \
	$(BIN)/python -m pytest -q -rs tests/e2e/clients tests/e2e/subscriptions/test_reference_usubscription.py $(ARGS)

lint: $(DEV) ## ruff, mypy --strict, import contracts, licences at run time
	$(call check,ruff check,$(BIN)/ruff check -q)
	$(call check,ruff format,$(BIN)/ruff format -q --check)
	$(call check,mypy,$(BIN)/mypy -n 2)
	@# Two plugins may have a tests/test_plugin.py each; to mypy that is one module twice, so: one run each.
	$(foreach t,$(wildcard plugins/*/tests) pipeline/tests tck/tests $(wildcard clients/*/tests),$(call check,mypy $(t),$(BIN)/mypy $(t))$(newline))
	$(call check,import contracts,$(BIN)/lint-imports --no-cache)
	$(call check,licences,$(BIN)/python -m release.licences)

conformance: $(DEV) ## rebuild docs/conformance.md and docs/someip-conformance.md: rules, code, tests, the test kit against ours
	@$(BIN)/python -m tests.conformance $(ARGS)

bench: $(DEV) ## the figures of docs/performance.md next to bare forwarders, at most 15 minutes (ARGS="calls rates")
	@$(BIN)/python -m benchmarks.suite $(ARGS)

scorecard: $(DEV) ## R1 to R28 of docs/reliability.md, some minutes (ARGS="R5 R9 --tier N --json FILE")
	@$(BIN)/python -m tests.scorecard $(ARGS)

soak: $(DEV) ## the tests that make test leaves out, each with its name and time (ARGS="-k kills")
	@$(PIP) install 'ustreamer[fuzz]'
	@$(BIN)/python -m pytest -v -m soak --timeout 0 --durations 0 --durations-min 1 $(ARGS)

fuzz: $(DEV) ## hostile inputs for each border, guided by coverage (ARGS="http admin --inputs 10000000 --jobs 2 --keep")
	@$(PIP) install 'ustreamer[fuzz]'
	@$(BIN)/python -m tests.fuzz $(ARGS)

proto: $(DEV) ## make ustreamer/uprotocol/pb again from proto/
	@$(BIN)/python proto/generate.py

docs: $(RUN) ## the documentation site: build/site/index.html, strict, with search; works without a network
	@$(PIP) install 'ustreamer[docs]'
	@$(BIN)/python docs/pictures.py
	@$(BIN)/python -m sphinx -q -W --keep-going -d build/site-cache -c docs . build/site
	@echo 'build/site/index.html'

dist: $(DEV) ## wheels and sdists of all distributions in dist/, checked and tried in an environment of their own
	@$(PIP) install 'ustreamer[dist]'
	@$(BIN)/python -m release.build
	@$(BIN)/python -m release.try_install

deb: dist ## a Debian package of all that a gateway needs, tried in a clean root (needs root and debootstrap)
	@$(BIN)/python -m release.deb
	@$(BIN)/python -m release.try_deb

lock: $(DEV) ## lock the packages of others on a gateway with hashes: release/gateway.lock (ARGS=--upgrade: the newest)
	@$(PIP) install 'ustreamer[dist]'
	@$(BIN)/python -m release.lock $(ARGS)

sbom: $(DEV) ## a bill of materials of a gateway in CycloneDX: dist/ustreamer.cdx.json
	@$(PIP) install 'ustreamer[dist]'
	@$(BIN)/python -m release.build
	@$(BIN)/python -m release.sbom

clean: ## remove .venv, caches and build leftovers
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@for p in . plugins/* pipeline tck clients/*; do rm -rf $$p/build $$p/dist $$p/*.egg-info; done
	@find ustreamer plugins pipeline tck clients tests proto benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1~\2/p' Makefile | awk -F'~' '{ printf "%-20s%s\n", $$1, $$2 }'

define newline


endef

# Debian splits ensurepip out of Python (package python3-venv). Without it `venv` fails half-way; then the outer pip,
# which Debian forbids to touch its own packages but not those of a virtual environment, brings pip in.
$(BIN)/pip:
	@test -n '$(PYTHON)' || { echo 'needs Python 3.11 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || { \
	    $(PYTHON) -m venv --clear --without-pip .venv && \
	    $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check -q install pip; }

$(RUN): $(PROJECTS) | $(BIN)/pip
	@echo 'installing the streamer and its plugins'
	@$(PIP) install -e '.[zenoh,cli,observe]' $(PLUGINS:%=-e ./%)
	@touch $@

# After the other stamp, never in parallel: two pips in one environment break it.
$(SPARK): $(RUN) $(PIPELINE)
	@echo 'installing the pipeline, Spark included (1 GB, some minutes)'
	@$(PIP) install -e ./pipeline
	@touch $@

# By name, not -e: the streamer stands already, only the extras are added, and a demo that runs meanwhile (make -j) keeps
# its script.
$(DEV): $(SPARK) $(KIT)
	@echo 'installing what development needs'
	@$(PIP) install -e ./tck
	@$(PIP) install 'ustreamer[zenoh,cli,observe,dev]' 'ustreamer-pipeline[connect,mcap,s3]'
	@touch $@

# A WAMP client that is not ours, for tests only: pinned, with the hash of each file, in package-lock.json. Nothing of it is
# run at installation. Without npm, or its registry, the tests that need it are skipped and say so.
$(AUTOBAHN): $(addprefix plugins/wamp/tests/js/,package.json package-lock.json)
	@mkdir -p $(@D)
	@cp $^ $(@D)
	@if ! command -v npm >/dev/null; then echo 'no npm: the tests with Autobahn|JS are skipped'; \
	elif cd $(@D) && npm ci --silent --ignore-scripts --omit=optional --no-audit --no-fund; then touch $(@F); \
	else echo 'npm could not install Autobahn|JS: the tests with it are skipped'; fi

# The vectors of wamp-proto are not ours to copy; a source distribution of a client has them. It is fetched by its hash, and of it
# only these files are used.
$(VECTORS): plugins/wamp/tests/vectors.txt | $(BIN)/pip
	@rm -rf $(@D) && mkdir -p $(@D)
	@if $(PIP) download --no-deps --no-binary autobahn --require-hashes -d $(@D) -r $< && \
	    tar -xzf $(@D)/autobahn-*.tar.gz -C $(@D) --strip-components=3 --wildcards '*/.proto/testsuite/*.json'; then touch $@; \
	else echo 'pip could not fetch the vectors of WAMP: the tests with them are skipped'; fi

# up-python requires another protobuf than the streamer: it has an environment of its own.
build/up-python/.installed: clients/up-python/pyproject.toml | $(BIN)/pip
	@rm -rf $(@D)
	@if $(BIN)/python -m venv --without-pip $(@D) && $(PIP) --python $(@D)/bin/python install -e ./clients/up-python; then touch $@; \
	else echo 'pip could not install up-python: the tests with it are skipped'; fi

# It declares no licence, and requires an old protobuf: nothing of ours imports it, a test runs a program with it.
build/someip-py/.installed: tests/e2e/clients/someip_py.txt | $(BIN)/pip
	@rm -rf $(@D)
	@if $(BIN)/python -m venv --without-pip $(@D) && $(PIP) --python $(@D)/bin/python install -r $<; then touch $@; \
	else echo 'pip could not install someip-py: the tests with it are skipped'; fi
