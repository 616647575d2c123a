# make demo    installs what it needs, then trains, evaluates and shows a retrieval model
# make test    installs the libraries of the extras and tests as well, as all targets below do, then runs the tests
# make test-all   the thorough tests too, in a quarter of an hour: CONTRIBUTING.md says when
# make test-fast   the quick tests alone, with fewer random examples: CONTRIBUTING.md says which are left out
# make test-oldest   some tests with the oldest versions of the dependencies that pyproject.toml allows
# make check   style, types and the rooms' import rules
# make docs    builds the site of docs/ and the API reference in build/site; broken links are errors
# make bench   start, training step, losses, loading, evaluation, samplers, indexes and embedding against their bare
#     counterparts, in twenty minutes: docs/benchmarks.md. ONLY="losses loading" some alone
# make bench-peers   dml against other libraries for metric learning, each in an environment of its own below build/peers, in
#     half an hour: docs/performance.md. PHOTOGRAPHS=CSV adds a second data set
# make tables-list   the papers' tables with the numbers of their cells and runs
# make table-rll-I DATA=/data   runs what is missing of one and prints it; `make tables` all of them; -n shows the commands
#     SEEDS=5 runs of each training, PRESET=smoke small on the embedded data, SET='trainer.precision=bf16-mixed'
# make leaderboard   every loss after the same search, in half an hour for each data set: docs/leaderboard.md. PHOTOGRAPHS=CSV adds a
#     second data set, KIND=whole trains whole networks (KIND=long for 1,200 steps), LOSSES=rll,circle some losses alone
# make benchmark DATA=/data   five losses with pretrained networks on public data sets: docs/benchmark.md. DATASETS=cub200
#     NETWORKS=resnet50 LOSSES=rll a part, PRESET=smoke two steps on miniature data
# make emoji   rebuilds the embedded data set from its sources (needs npm)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
SETUP := $(VENV)/.set-up

.PHONY: demo setup test test-all test-fast test-gpu test-oldest check format docs bench bench-peers tables tables-list leaderboard benchmark emoji clean

demo: $(CORE)
	$(BIN)/python train.py

setup: $(SETUP)

# pip would compile all 25,000 files for a minute, Python compiles those that are imported, if it may keep the results
COMPILE = $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)

INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check $(COMPILE) --constraint constraints.txt --editable

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	@echo 'Installing into $(VENV): 6 GB in 1 to 5 minutes (without a GPU, 1.4 GB are enough: docs/installing.md)'
	$(INSTALL) .
	touch $@

$(SETUP): $(CORE)
	@echo 'Installing the libraries of the extras and the tests into $(VENV): 1.2 GB more in 1 to 3 minutes'
	$(INSTALL) '.[dev]'
	touch $@

# a process that is done takes over tests of the other; without compiled files each process compiles all that it imports
# the tests have half a gigabyte of files at a time, in thousands of folders, which memory makes and removes faster than a disk
MEMORY = $(shell [ -w /dev/shm ] && [ $$(df --output=avail /dev/shm | tail -1) -gt 2000000 ] && echo TMPDIR=/dev/shm)
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(if $(TMPDIR),,$(MEMORY)) $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test: setup
	$(PYTEST) -m 'not thorough'

test-all: setup
	HYPOTHESIS_PROFILE=all $(PYTEST)

# what only a GPU can show; DEVICE=cpu tries the same tests without one
test-gpu: setup
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal --device $(or $(DEVICE),cuda) tests/gpu

# uv can choose the oldest versions, pip can't; they warn of what newer ones mend
OLDEST = build/oldest/bin
test-oldest:
	$(PYTHON) -m venv build/oldest
	$(OLDEST)/pip install --quiet --disable-pip-version-check uv
	$(OLDEST)/uv pip install --quiet --python $(OLDEST)/python --resolution lowest-direct --editable '.[serve]' \
		'hypothesis>=6.100' 'pytest>=8' 'pytest-timeout>=2.3' 'pytest-xdist>=3.7' 'setuptools>=77' 'six>=1.16'
	$(OLDEST)/python -m pytest -W default --numprocesses 2 --dist worksteal -m 'not thorough' tests/test_end_to_end.py \
		tests/inference/test_image_index.py tests/inference/test_loading.py tests/inference/test_saved_files.py \
		tests/losses/test_laws.py tests/retrieval

test-fast: setup
	HYPOTHESIS_PROFILE=fast $(PYTEST) -m 'not thorough and not pipeline and not distributed and not data_sets and not networks'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python scripts/bench.py $(ONLY)

PEERS = $(BIN)/python scripts/bench_peers.py

build/peers/.set-up: $(wildcard scripts/peers/requirements/*.txt) | setup
	$(PEERS) --install
	touch $@

bench-peers: setup build/peers/.set-up
	$(PEERS) $(if $(PHOTOGRAPHS),--photographs '$(PHOTOGRAPHS)')

STUDY = $(BIN)/python -m dml study
STUDY_OPTIONS = $(addprefix seeds=,$(SEEDS)) $(if $(DATA),--data '$(DATA)') $(addprefix --jobs ,$(JOBS)) \
	$(if $(findstring n,$(firstword -$(MAKEFLAGS))),--commands)
PHOTOGRAPHS_OPTION = $(if $(PHOTOGRAPHS),'datasets.photographs.root=$(PHOTOGRAPHS)')

table-%: setup
	+$(STUDY) $* run $(STUDY_OPTIONS) $(addprefix --preset ,$(PRESET)) $(addprefix --set ,$(SET))

tables: setup
	+$(STUDY) tables run $(STUDY_OPTIONS) $(addprefix --preset ,$(PRESET)) $(addprefix --set ,$(SET))

tables-list: setup
	@$(STUDY) tables list $(addprefix seeds=,$(SEEDS))

leaderboard: setup
	+$(STUDY) leaderboard run $(STUDY_OPTIONS) $(PHOTOGRAPHS_OPTION) $(addprefix conditions=,$(KIND)) $(addprefix rows=,$(LOSSES))

BENCHMARK = $(STUDY) benchmark run $(STUDY_OPTIONS) $(addprefix --set ,$(SET))

ifeq ($(PRESET),smoke)
benchmark: DATA = build/miniatures
benchmark: BENCHMARK += --preset smoke
benchmark: setup
	PYTHONPATH=tests $(BIN)/python -m miniatures $(DATA)
	+$(BENCHMARK) conditions=small_cnn rows=proxy_anchor
	+$(BENCHMARK) datasets=cub200 rows=rll
else
benchmark: setup
	+$(BENCHMARK) $(addprefix datasets=,$(DATASETS)) $(addprefix conditions=,$(NETWORKS)) $(addprefix rows=,$(LOSSES))
endif

emoji: setup
	$(BIN)/python scripts/build_emoji.py --output dml/data/assets/emoji.zip

clean:
	rm -rf $(VENV) build *.egg-info .*_cache .hypothesis
