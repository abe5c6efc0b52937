# `make help` lists the targets. Each makes ready what it needs first: see tests/harness/setup.sh.
SHELL := /bin/bash
.DEFAULT_GOAL := help

setup := tests/harness/setup.sh
inner := $(MAKE) --no-print-directory
pytest := python -m pytest
types := --package liken_audio --package tests.harness --package tests.demo
# Guests with sound cards are made for this processor only; on others their tests skip, with the reason.
guest := $(if $(filter x86_64,$(shell uname -m)),guest)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo 'What is downloaded and compiled is kept in $${LIKEN_AUDIO_CACHE:-~/.cache/liken-audio}.'

.PHONY: demo
demo: ## a pod's claim plays a tone, on a real control plane (KEEP=1 stays up; DEMO_KUBECONFIG=FILE takes your cluster)
	@$(setup) root python sound $(if $(DEMO_KUBECONFIG),kubectl,cluster) -- python -m tests.demo

.PHONY: test
test: ## all checks and all tests: what CI runs
	@$(setup) root dev sound cluster node image $(guest) -- $(inner) _lint _test

.PHONY: check
check: ## the quick ones, to run before each commit: formats, lint, types, layers, unit tests
	@$(setup) dev -- $(inner) _lint _unit

.PHONY: lint
lint: ## formats, lint, types, layers, generated code
	@$(setup) dev -- $(inner) _lint

.PHONY: unit
unit: ## the unit tests: no socket, no process
	@$(setup) dev -- $(inner) _unit

.PHONY: integration
integration: ## each edge against its real partner: PipeWire, the API server, gRPC sockets
	@$(setup) root dev sound cluster -- env LIKEN_AUDIO_REQUIRE=1 $(pytest) tests/integration $(ARGS)

.PHONY: cluster
cluster: ## the whole agent with a real control plane
	@$(setup) root dev sound cluster -- env LIKEN_AUDIO_REQUIRE=1 $(pytest) tests/cluster $(ARGS)

.PHONY: test-node
test-node: ## the image and the manifests on a real kubelet and container runtime
	@$(setup) root dev sound cluster node image -- env LIKEN_AUDIO_REQUIRE=1 $(pytest) tests/node $(ARGS)

.PHONY: test-image
test-image: ## what is in the image, and its daemons as the manifests start them
	@$(setup) root dev sound image -- env LIKEN_AUDIO_REQUIRE=1 $(pytest) tests/image $(ARGS)

.PHONY: test-hardware
test-hardware: ## the agent in a guest with emulated sound cards and a Bluetooth speaker (QEMU)
	@$(setup) root dev sound cluster guest -- env LIKEN_AUDIO_REQUIRE=1 $(pytest) tests/hardware $(ARGS)

.PHONY: bench
bench: ## the figures of docs/limits.md, each against its bound (ARGS=node: those of a real node; ARGS=emulated: of cards in a guest)
	@$(setup) root dev sound cluster $(if $(filter node,$(ARGS)),node image) $(if $(filter emulated,$(ARGS)),guest) -- python -m tests.bench $(ARGS)

.PHONY: image
image: ## build the image with buildah, podman or docker (ARGS='--archive FILE', and more: image/build.sh)
	@image/build.sh $(ARGS)

.PHONY: proto
proto: ## write the generated code of the kubelet's APIs anew
	@$(setup) dev -- protos/generate.sh python

.PHONY: format
format: ## format the code and mend what the linter can mend
	@$(setup) dev -- sh -c 'ruff format . && ruff check --fix .'

.PHONY: lock
lock: ## resolve the pinned packages anew (needs uv)
	@for group in '' dev; do \
	    uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	        $${group:+--group $$group --constraints requirements.lock} pyproject.toml -o requirements$${group:+-$$group}.lock || exit; \
	done

.PHONY: clean
clean: ## remove what tools left in the tree (the cache outside stays)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- run by the targets above, with the environment on the PATH ------------------------------------------

.PHONY: _lint _unit _test
_lint:
	ruff format --check .
	ruff check .
	mypy --strict $(types)
	lint-imports
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && protos/generate.sh python "$$folder/generated" >/dev/null && \
	    diff -r --exclude=__pycache__ "$$folder/generated" liken_audio/kubelet/generated || \
	    { echo 'liken_audio/kubelet/generated is not what protos/ makes: run make proto'; exit 1; }

_unit:
	$(pytest) tests/unit --numprocesses 2 $(ARGS)

# On real parts a test that fails is run once more, three of each run at most, and both runs are shown: one of
# hundreds must not keep all work back. Who sees a rerun in the summary has a fault to find and mend.
_test: reruns := --reruns 1 --max-suite-reruns 3 -rR --rerun-show-tracebacks
_test: _unit
	LIKEN_AUDIO_REQUIRE=$(if $(guest),1) $(pytest) $(reruns) tests/hardware $(ARGS)
	LIKEN_AUDIO_REQUIRE=1 $(pytest) $(reruns) tests/integration tests/cluster tests/image tests/node $(ARGS)
