# Everything needs no more than Python 3.11 or newer, pip and make: the first call makes .venv, later ones reuse it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
RAY := .venv/installed-ray

.PHONY: help demo test test-fast lint docs coverage browser audit clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       run the main job and show what it finds"
	@echo "make test       everything: lint, types, documents, all tests (fetches SmolLM2 once, 93 MB)"
	@echo "make test-fast  the quick tests, which need neither a real model nor a GPU"
	@echo "make lint       ruff, codespell, mypy, ESLint"
	@echo "make docs       the documentation site, in site/"
	@echo "make coverage   what part of the code the quick tests run"
	@echo "make audit      known vulnerabilities of what constraints.txt pins (needs a network)"
	@echo "make clean      remove .venv and what tools left behind"

# setuptools comes first because the package is then built with it, pinned, and not with whichever is newest today; torch,
# because it is by far the largest and is best not fetched again when a smaller package fails to install
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,docs,rl,report]'
	touch $@

# Ray, for the tests of clusters alone
$(RAY): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[cluster]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m mechrl.demo

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python tools/lint_page.py

# the site: read it with a browser from site/index.html
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # `--quiet` would let every warning through

# what part of src the quick tests run, by file; browsable in .venv/coverage
coverage: $(STAMP)
	$(PYTEST) -m "not real and not gpu and not slow" --cov=mechrl --cov-report=term:skip-covered --cov-report=html:.venv/coverage

# The viewer is tested in a real browser. Where none can be had its tests are skipped, and the report says so.
BROWSER = $(firstword $(foreach name,chromium chromium-browser google-chrome google-chrome-stable,$(shell command -v $(name))))
browser:
	@if [ -z "$(BROWSER)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium for the browser tests"; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ timeout 120 apt-get -q update; timeout 600 apt-get -q install -y --no-install-recommends chromium; } >/dev/null 2>&1 || true; \
	fi

# one process a core, each with one thread (tests/conftest.py); a file's tests stay together and share what they load
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

test: lint docs browser $(RAY)
	$(PYTEST)

test-fast: $(STAMP)
	$(PYTEST) -m "not real and not gpu and not slow"

# in an environment of its own: what audits must not be part of what is audited
audit:
	@test -x .venv/audit/bin/pip-audit || { $(PYTHON) -m venv .venv/audit && .venv/audit/bin/python -m pip install --quiet --retries 1 \
		--disable-pip-version-check pip-audit; } >/dev/null 2>&1 || { rm -rf .venv/audit; \
		echo "make audit: pip-audit cannot be fetched; connect to a network, then repeat the command"; exit 1; }
	@.venv/audit/bin/pip-audit --progress-spinner off --disable-pip --no-deps -r constraints.txt >.venv/audit/found 2>.venv/audit/said; \
		failed=$$?; unknown=$$(grep -c "could not be audited" .venv/audit/found); \
		grep -v "could not be audited" .venv/audit/found; grep -i "known vulnerabilit" .venv/audit/said; \
		if [ "$$unknown" -gt 0 ]; then \
			echo "make audit: nothing could be found out about $$unknown packages from here; repeat it with another network"; exit 1; \
		elif [ $$failed -ne 0 ] && ! grep -q "^Found" .venv/audit/said; then \
			echo "make audit: the list of vulnerabilities cannot be reached; connect to a network, then repeat the command"; exit 1; \
		fi; exit $$failed

clean:
	rm -rf .venv site tools/eslint/node_modules .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
