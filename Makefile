# The first CPython of a version that the pinned packages support.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
# What the demo needs, and everything: a file each that says that it is installed.
DEMO := .venv/demo-installed
INSTALLED := .venv/installed

# Images of containers set this. Each of the hundreds of processes of a check would then compile PyTorch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install wheel demo demo-times first-steps install-size wrong-inputs nightly serve demo-live gang frameworks stoppers mpi spark array cookbook cases memory risk auctions constants chaos simulate simulate-mutants parity live-matrix benchmark test long exhaustive docs docs-links lint house bench clean

install: $(INSTALLED)

# pip's setting of a name, if pip has one; uv does not read pip's settings.
pip_setting = $$($(BIN)/python -m pip config get global.$(1) 2>/dev/null || true)

# Install this package with some extras: by uv, which takes a tenth of pip's time, or by pip where uv cannot.
# An environment made by one Python must not be overwritten by another.
define install_extras
	@test -n "$(PYTHON)" || { echo "ebbtide needs Python 3.11, 3.12 or 3.13 with venv (on Debian, python3-venv); none is on the PATH" >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || \
	"$$($(PYTHON) -c 'import os, sys; print(os.path.realpath(sys.executable))')" -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv && \
	UV_FIND_LINKS="$${PIP_FIND_LINKS:-$(call pip_setting,find-links)}" \
	UV_DEFAULT_INDEX="$${PIP_INDEX_URL:-$(call pip_setting,index-url)}" \
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[$(1)]' || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
	$(BIN)/python -m ebbtide.cli.precompile
	touch $@
endef

$(DEMO): pyproject.toml constraints.txt
	$(call install_extras,all)

$(INSTALLED): pyproject.toml constraints.txt
	$(call install_extras,dev)

# The main job with its embedded defaults: the pipeline on a generated market, models trained, registered, solved
# and executed; no account, no server.
demo: $(DEMO)
	$(BIN)/python -m pipelines repro --keep-lock
	@cat reports/answers.md

# Seconds of `make demo` on a quiet machine, and with one core kept busy beside it; reports/demo-times.json.
demo-times: $(INSTALLED)
	$(BIN)/python -m tests.benchmarks.demo_times reports/demo-times.json

# Every block of the documentation in a fresh clone, in the order printed; reports/first-steps.json. What is
# committed counts.
first-steps: $(INSTALLED)
	$(BIN)/python -m tests.first_steps reports/first-steps.json $(FIRST_STEPS)

# Exit code and message of each wrong input; reports/wrong-inputs.md.
wrong-inputs: $(INSTALLED)
	$(BIN)/python -m tests.cli.wrong_inputs reports/wrong-inputs.md

# The nightly run, once, without a server: adds new prices, updates what depends on them, trains the jobs that are due,
# reports what changed.
nightly: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pipelines nightly

# A Prefect server, a worker and the nightly schedule, on loopback; Ctrl-C ends all three.
serve: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pipelines serve

# A sweep of a real network, trained by local processes that a replayed market revokes; reports/demo-live.json.
# PROVIDER=ec2, gcp or skypilot: on machines of a stand-in for it.
PROVIDER ?= local
demo-live: $(INSTALLED)
	$(BIN)/python -m tests.harness.live_demo --provider $(PROVIDER)

# How much `pip install ebbtide` downloads, without extras and with all; reports/install-size.json.
install-size: $(INSTALLED)
	$(BIN)/python -m tests.install_size reports/install-size.json

# What ends trials early, EarlyCurve or ASHA: cost, time and the trial that a sweep ends with, on measured curves;
# reports/stoppers.json. PRICES: a Parquet file of auction prices.
PRICES ?= ../shared/traces/ec2-auction-2015.parquet
stoppers: $(INSTALLED)
	$(BIN)/python -m ebbtide_papers.spottune.stoppers --prices $(PRICES)

# Machines that train as one, taken one, two and four at a time; reports/gang.json.
gang: $(INSTALLED)
	$(BIN)/python -m tests.harness.gang_study

# Programs of PyTorch Lightning, Hugging Face's Trainer and Accelerate, each taken from its machine five times;
# reports/frameworks.json.
frameworks: $(INSTALLED)
	$(BIN)/python -m tests.harness.framework_study

# An MPI program whose machines are taken; reports/mpi.json.
mpi: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.harness.mpi_study

# A Spark application whose workers are taken; reports/spark.json.
spark: $(INSTALLED)
	$(BIN)/python -m tests.harness.spark_study

# Two thousand tasks through the loss of fifty machines; reports/array.json.
array: $(INSTALLED)
	$(BIN)/python -m tests.harness.array_study

# A matrix program by a cookbook, whose machines are taken and whose controller is killed;
# reports/cookbook-live.json.
cookbook: $(INSTALLED)
	$(BIN)/python -m tests.harness.cookbook_study

# Programs that know nothing of Ebbtide, saved as frameworks save, each taken from its machines five times, and
# rehearsed; reports/cases.json.
cases: $(INSTALLED)
	$(BIN)/python -m tests.cases.run reports/cases.json

# Cost of the default policy and of simple rules in generated auctions of random harshness; reports/auctions.json.
auctions: $(INSTALLED)
	$(BIN)/python -m tests.harness.auction_study

# Constants of the default policy, chosen without each file, type and zone of the records and judged there;
# reports/constants.json.
constants: $(INSTALLED)
	$(BIN)/python -m tests.harness.constants_study

# Memory of agent and controller while a program prints 30,000 lines a second, for an hour; reports/memory.json. Then
# memory, storage and journal of a run of a week on the virtual clock; reports/week.json.
memory: $(INSTALLED)
	$(BIN)/python -m tests.harness.memory_study
	$(BIN)/python -m tests.harness.week_study

# Policies with the hazard and with prices alone, on recorded capacity; reports/risk.json.
risk: $(INSTALLED)
	$(BIN)/python -m tests.harness.risk_study

# Live runs with faults at random moments, SEED the first of SEEDS; reports/chaos.json.
SEED ?= 0
SEEDS ?= 5
chaos: $(INSTALLED)
	$(BIN)/python -m tests.harness.chaos.chaos --seed $(SEED) --seeds $(SEEDS)

# Live runs on one thread and a virtual clock, each with some hundred faults; SEED the first; reports/simulation.json.
RUNS ?= 10000
simulate: $(INSTALLED)
	$(BIN)/python -m tests.harness.deterministic.simulate reports/simulation.json --seed $(SEED) --runs $(RUNS)

# Defects that the live path once had, put back one by one: does simulation find each? reports/mutants.json.
simulate-mutants: $(INSTALLED)
	$(BIN)/python -m tests.harness.deterministic.mutants reports/mutants.json

# Every registered policy on the same tapes, in replay and live on a virtual clock: the same decisions in the same
# order, and the same ledger; reports/parity.json.
parity: $(INSTALLED)
	$(BIN)/python -m tests.harness.parity.parity reports/parity.json

# Every registered policy with every kind of job that it fits, in replay and live on a virtual clock;
# reports/live-matrix.json.
live-matrix: $(INSTALLED)
	$(BIN)/python -m tests.harness.live_matrix reports/live-matrix.json

# Every policy on every price and capacity record of a folder; reports/benchmark.json.
TRACES ?= ../shared/traces
benchmark: $(INSTALLED)
	$(BIN)/ebbtide benchmark --traces $(TRACES) --json reports/benchmark.json

# Every test but the slow ones: reports/slow-tests.json, reports/flaky.json.
test: lint
	$(BIN)/python -m tests.run

# Slow tests, from a few seconds to minutes: the schedule with a server and a worker, the pages in a browser, programs of others.
long: $(INSTALLED)
	$(BIN)/python -m tests.run --long

# The same on every kind of job, framework, cloud and program, and nights that are killed at each stage: for nights.
exhaustive: $(INSTALLED)
	$(BIN)/python -m tests.run --exhaustive

# The documentation as a site: reports/docs/index.html, searched without a network. A warning is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d reports/docs-cache docs reports/docs
	@echo "wrote reports/docs/index.html"

# Whether the links of the documentation that lead outside are alive; needs a network.
docs-links: $(INSTALLED)
	$(BIN)/python -m sphinx -q -b linkcheck -d reports/docs-cache docs reports/docs-links

# Style, format and types; nothing is changed.
lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.house --check
	$(BIN)/mypy

# The shape of the source: files, lines, functions with many parameters, import circles; reports/house.json.
house: $(INSTALLED)
	$(BIN)/python -m tests.house src reports/house.json

# dist/ebbtide-*.whl, tested in an environment of its own, without this folder.
wheel: $(INSTALLED)
	$(BIN)/python -m tests.wheel dist
	EBBTIDE_WHEEL="$$(ls $(CURDIR)/dist/ebbtide-*.whl)" $(BIN)/python -m pytest tests/test_wheel.py -m 'long or not long'

# Timed figures, each beside the floor it is measured against; never a pass or fail.
bench: $(INSTALLED)
	$(BIN)/python -m pytest tests/benchmarks -o python_files='bench_*.py' --benchmark-columns=min,median,rounds -q -s

clean:
	rm -rf data reports .mlflow .prefect .mypy_cache .ruff_cache .hypothesis
