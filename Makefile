# SPDX-License-Identifier: Apache-2.0
# Two commands are enough: `make demo` and `make test`. Both do all set-up, in .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo airflow test ruler test-fast test-matrix test-catalog cells walks check format docs docs-demo docs-images docs-reference dist job-wheel torture bench \
	pins clean distclean

BIN := .venv/bin
PYRIGHT := build/pyright/bin/basedpyright
FAST := tests/core/{catalog,freshness,ivm,refresh,spec,sql} \
	-m "not slow and not airflow and not postgres and not rest and not cluster and not browser" \
	--ignore tests/core/refresh/intervals --ignore tests/core/refresh/checks \
	--ignore tests/core/ivm/test_fuzz.py --ignore tests/core/ivm/test_mutants.py --ignore-glob "tests/core/ivm/test_tpc*" \
	--ignore tests/core/catalog/test_waits.py --ignore tests/core/catalog/test_sick_stores.py
# Tests of real schedulers, servers and browsers depend on time. What failed runs once more, in one process; both results
# are shown. A test that passes only then has a fault of its own, to be found.
AGAIN := { echo "Failed tests run once more, in one process:"; \
	$(BIN)/python -m pytest -m "not slow" --last-failed --last-failed-no-failures none --maxfail 3 $(PYTEST_ARGS); }
CHECKED := airflow_mv examples tests dags_examples benchmarks docker .ci
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests and the demo start hundreds of Python processes. Without bytecode files each of them compiles Airflow again.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## .venv with pinned packages, Java, Spark's jars (quick when they are there)
	@bash .ci/setup.sh

demo: ## four materialized views on real data: create, refresh from Airflow, go stale, refresh again
	@bash .ci/setup.sh demo
	@$(BIN)/airflow-mv demo

airflow: ## a local Airflow with the demo's DAGs and connections; prints the address and the login
	@bash .ci/setup.sh demo
	@$(BIN)/python -m examples.demo.standalone

test: setup check ## the checks, then all tests but the slow ones, in three processes (PYTEST_ARGS="-k name" narrows)
	@bash .ci/setup.sh services
	$(BIN)/python -m pytest -m "not slow" --numprocesses 3 --dist loadfile $(PYTEST_ARGS) || $(AGAIN)

ruler: setup ## how many files each command enters, and the moves from one to another
	$(BIN)/python -m pytest tests/structure -q -s $(PYTEST_ARGS)

test-fast: setup ## the inner loop: no Spark, no Airflow, no server (PYTEST_ARGS as above)
	$(BIN)/python -m pytest $(FAST) --numprocesses 2 --dist loadfile $(PYTEST_ARGS)

test-matrix: setup ## a part of the tests with each supported Airflow and Python (CELLS="3.3.2 3.13": one), and pairs of Spark and Iceberg
	@bash .ci/setup.sh matrix
	@bash .ci/matrix.sh
	$(if $(CELLS),,@bash .ci/pairs.sh)

test-catalog: setup ## the contract suite on any REST server (URI=https://…; PROPERTIES=file.json: its properties, for pyiceberg)
	@test -n "$(URI)" || { echo "make test-catalog URI=https://host/path PROPERTIES=properties.json"; exit 2; }
	AIRFLOW_MV_TEST_REST_URI="$(URI)" AIRFLOW_MV_TEST_REST_PROPERTIES="$(PROPERTIES)" \
		$(BIN)/python -m pytest tests/contract -m "" -k "rest-" $(PYTEST_ARGS)

cells: ## the combinations of test-matrix, as a line for a workflow's output
	@bash .ci/matrix.sh --list

check: setup $(PYRIGHT) ## ruff, mypy --strict, import contracts, and pyright on a DAG file
	$(BIN)/ruff check $(wildcard $(CHECKED))
	$(BIN)/ruff format --check $(wildcard $(CHECKED))
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	AIRFLOW_MV_TEST_PYRIGHT=$(PYRIGHT) $(BIN)/python -m pytest -q -k pyright tests/airflow/test_signatures.py

# It needs Node.js, which comes with it: an environment of its own.
$(PYRIGHT): .ci/pyright.txt | setup
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/pyright
	$(BIN)/uv pip install --quiet --require-hashes --python build/pyright/bin/python -r $<
	@touch $@

format: setup ## format the code, and apply the fixes that ruff has
	$(BIN)/ruff check --fix $(wildcard $(CHECKED))
	$(BIN)/ruff format $(wildcard $(CHECKED))

docs: setup ## the documentation as a site, in build/site; links are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file .ci/mkdocs.yml
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site"

docs-reference: setup ## the pages in docs/reference, from signatures and docstrings
	$(BIN)/python .ci/reference.py

docs-demo: setup ## what the demo prints, in docs/demo.md: the demo runs in an empty folder
	$(BIN)/python .ci/demo_output.py

docs-images: setup ## the pictures of the page in docs/images, by Chromium
	@bash .ci/setup.sh services
	$(BIN)/python -m tests.plugin.screenshots

pins: setup ## the pinned packages and their digests anew, from pyproject.toml (PINS=--upgrade: the newest versions)
	printf '%s\n' uv editables | $(COMPILE) --extra test --extra bench $(PINS) --output-file requirements.txt pyproject.toml -
	sed -nE 's/^([^ ]+==[^ ]+).*/\1/p' requirements.txt >constraints.txt
	printf '%s\n' hatchling hatch-fancy-pypi-readme | $(COMPILE) --extra spark --extra postgres -c constraints.txt \
		--output-file docker/requirements.txt pyproject.toml -
	@mkdir -p build
	printf '%s\n' uv editables hatchling hatch-fancy-pypi-readme | $(COMPILE) --extra spark --extra postgres --extra demo \
		-c constraints.txt --output-file build/demo.txt pyproject.toml -
	sed -nE 's/^([^ ]+==[^ ]+).*/\1/p' build/demo.txt >.ci/demo.txt
	$(COMPILE) $(PINS) --output-file .ci/readers.txt .ci/readers.in
	echo basedpyright | $(COMPILE) $(PINS) --output-file .ci/pyright.txt -
	printf '%s\n' twine cyclonedx-bom | $(COMPILE) $(PINS) --output-file .ci/release.txt -

dist: setup ## wheel and source archive in dist, each installed and tried in a fresh environment (TAG=v1.2.3: the expected version)
	@bash .ci/dist.sh

job-wheel: setup ## the Spark job as a wheel of its own (airflow-mv-job), in dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist job-wheel

torture: setup ## the slow tests, minutes each, and their figures (SEED=7: other choices; SLICE=2/4: a quarter of them)
	@bash .ci/setup.sh services
	$(if $(SEED),TORTURE_SEED=$(SEED) AIRFLOW_MV_FUZZ_SEED=$(SEED)) $(if $(SLICE),TORTURE_SLICE=$(SLICE)) $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

walks: setup ## three users of a whole Airflow: DAG author, engineer who backfills, analyst; each step is printed
	@bash .ci/setup.sh services
	$(BIN)/python -m pytest tests/walks -m slow -q $(PYTEST_ARGS)

bench: setup ## all that has a target, beside it and the alternative: under 40 minutes (BENCH_ARGS="--minutes 20")
	@bash .ci/setup.sh services
	@$(BIN)/python -m benchmarks all $(BENCH_ARGS)

clean: ## what builds and tests leave behind
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		spark-warehouse metastore_db derby.log
	find airflow_mv tests dags_examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## clean, and the environment, the demo and benchmark data too
	rm -rf .venv .demo .bench
