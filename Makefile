# SPDX-License-Identifier: Apache-2.0
# The front door: `make help` lists the targets. Everything here calls cmake, ctest or a script.
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# For figures of the documentation: the first one that has matplotlib.
REPORT_PYTHON = $(shell for p in .venv/bin/python python3 /usr/bin/python3; do "$$p" -c 'import matplotlib' 2>/dev/null && echo "$$p" && exit; done; echo python3)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# ccache takes paths relative to the build folder, so that one build folder finds the objects of another.
export CCACHE_BASEDIR := $(CURDIR)
# Tests start hundreds of processes that import torch: 4.6 s of a processor each without bytecode files, 1.7 s with them.
unexport PYTHONDONTWRITEBYTECODE

# Our own C++ files: those in git or about to be.
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.cc' | sort -u | while read -r f; do [ ! -e "$$f" ] || echo "$$f"; done
# More tests at a time than cores: those about faults sleep until a timeout.
TEST_JOBS = $(shell echo $$((4 * $(JOBS))))
PYTEST_JOBS = $(shell echo $$((2 * $(JOBS))))
# The thread sanitizer of older compilers needs a fixed address layout, where that can be asked for.
FIXED_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# The laws' full sweep over P, skip lists and nodes is left to the release build: under a sanitizer three and four ranks,
# and nodes of three in five and seven, show what twelve do in a fraction of the time. So are long runs that count messages
# or allocations or look for a minimum, and the one that measures for as long as it is allowed to.
# Kernels run once alone and at each level with three threads.
LAW_SKIPS = $(foreach p,1 2 5 7 8 12 32,*_P$p *_P$p_*) $(foreach i,0 1 4 5 6 7,*CirculantSkipLaws.*/$i) \
  $(foreach p,1 2 3 4 8 12,*_of_$p) *_host_of_* *_2_of_* *_4_of_* */nodes_of_2_* */elastic_* \
  Circulant.run_steady_* Circulant.run_direct_* *Allocation.* *allocates_nothing* NetworkPrices.are_never_* *VolumeLaws.* \
  Circulant.save_and_load_keep_the_pause_* Oktopk.run_steered_counts_* \
  *OptimiserOfKind.step_after_step_*
# Under ASan also not: statistics of sizes and errors; sorts of many entries (all small sizes stay); widening and the
# hidden device, which compare results (other verbs and the laws make the same accesses); random bytes as frames
# (fuzz_replay_frame and FrameDamage give the decoder worse ones).
ASAN_SKIPS = $(LAW_SKIPS) */avx2_1 */avx512_1 *_meets_the_expected_size/* Value*.recode_tails_* Top.keep_largest_of_many_* \
  *_widens_* HiddenDevice.presets_and_rules_* FrameNoise.open_random_bytes_*
# With threads: every preset and rule meets every length, but one input and one coding; transports have three, five and eight
# ranks; kernels run at one level; and not what is arithmetic, the same on any number of threads.
TSAN_SKIPS = $(LAW_SKIPS) $(foreach i,skewed tied equal zero lonely,*AllreduceLaws.*_$i) \
  $(foreach c,coo32 u16_blocks bit_packed bitmap,*CodecLaws.*_$c) *CodecLaws.*_P4_* *Bf16Laws.*_P4 *NodeLaws.*_of_5 \
  $(foreach p,1 2 4 7 12,*/threads_$p_* */tcp_$p_*) $(foreach l,scalar avx2 avx512,*/$l_1) */avx2_3 */avx512_3 *_widens_* *DenseRegion* \
  RegionMemory* NetworkPrices.* *drain_everything* *of_values_with_few_bits* Circulant.run_* *beyond_24_bits* SparseSGD* SparseAdamW* \
  TensorStep.result_for_other_types_* *ReducerAdaptive.ranks_agree_*
all_but = GTEST_FILTER='-$(subst $(eval ) ,:,$(strip $(1)))'
comma := ,
heading = @printf '\n=== %s\n' "$(1)"

.PHONY: help bootstrap build demo test test-deep oktopk-lab lab bench report format lint clean
.PHONY: check-format check-layers check-mirror check-prose check-docs check-tidy docs test-release test-python test-asan test-tsan
.PHONY: test-gpu test-gpu-sanitizers ends faults fuzz kill soak wheels

# Stages share folders: `make -j` would build in one of them twice at once.
.NOTPARALLEL:

help:  ## this list
	@grep -hE '^[a-z][a-z -]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-14s %s\n", $$1, $$2}'

bootstrap:  ## install what is missing (silent when nothing is)
	@scripts/bootstrap

build: bootstrap  ## release build: the command at build/oktopk
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS) --target oktopk_tool

demo: build  ## train with dense, topka, oktopk and circulant on 4 ranks; ends with a report to open
	build/oktopk train --ranks 4 --preset dense,topka,oktopk,circulant --density 0.01 --html oktopk-report.html

# Each stage is a target of its own. A new stage goes to the list that has room: CONTRIBUTING.md has the times.
test: bootstrap check-format check-layers check-mirror check-prose test-release test-python check-docs  ## what a change is most likely to break
	$(call heading,all stages of make test passed)

test-deep: bootstrap check-tidy test-asan test-tsan  ## the rest of what CI runs: clang-tidy, unit tests under the sanitizers
	$(call heading,all stages of make test-deep passed)

check-format:  ## clang-format finds nothing to change
	$(call heading,formatting)
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror

check-layers:  ## includes point downwards only, and every file has those of the names it uses
	$(call heading,layers)
	@python3 scripts/check_layers.py
	@python3 scripts/check_includes.py

check-mirror:  ## every source has its test, every preset its page, no file is too long
	$(call heading,mirror)
	@python3 scripts/check_mirror.py

check-prose:  ## no line above 120 columns, no sentence without its subject
	$(call heading,prose)
	@python3 scripts/check_prose.py

test-release:  ## all tests of the release build, warnings as errors
	$(call heading,release: build and all tests)
	@cmake --preset release -DOKTOPK_WERROR=ON -DOKTOPK_CUDA_ARCHITECTURES=90 >/dev/null
	@cmake --build build -j $(JOBS)
	@scripts/run_tests build $(TEST_JOBS) -LE '^lab$$'

# Fails where there is no GPU or a test is skipped: a skipped check is no check.
GPU_TESTS = $(foreach f,device gpu comm allreduce reduce optim mpi lab,test_$f) oktopk_lab
GPU_BUILD = cmake --preset release -DOKTOPK_WERROR=ON -DOKTOPK_WITH_CUDA=ON -DOKTOPK_CUDA_ARCHITECTURES=native >/dev/null

test-gpu:  ## what needs an NVIDIA GPU: unit tests, NCCL, the laws, Python
	$(call heading,gpu: the tests that need one, and the laws on it)
	@$(GPU_BUILD)
	@cmake --build build -j $(JOBS) --target oktopk_tool oktopk_cuda $(GPU_TESTS)
	@scripts/run_gpu_tests build

test-gpu-sanitizers:  ## the GPU's kernels under compute-sanitizer: memory, races, uninitialised reads
	$(call heading,gpu: compute-sanitizer)
	@$(GPU_BUILD)
	@cmake --build build -j $(JOBS) --target oktopk_tool oktopk_lab oktopk_cuda test_device test_gpu
	@scripts/run_gpu_tests build sanitizers

# More at a time than cores: most of a test is processes that start and wait for each other. A worker without work takes
# tests of another one.
test-python:  ## the Python package: installed into .venv by pip, types, tests
	$(call heading,python: the package and its tests)
	@scripts/python_env
	@.venv/bin/python -m mypy
	@.venv/bin/python -m pytest -q -n $(PYTEST_JOBS) --dist worksteal tests/python

docs:  ## the documentation as a site, with a search and both references: build-docs/site/index.html
	@scripts/docs_env
	@.venv/bin/python scripts/docs_site.py

# After test-release and test-python: it needs build/oktopk and the installed package.
check-docs:  ## the site builds; no dead link or anchor; every code block of the docs is compiled, parsed or listed
	$(call heading,docs: the site and all code blocks)
	@scripts/docs_env
	@.venv/bin/python scripts/docs_site.py --check

# clang compiles tests for ASan in half the time that GCC takes, and its UBSan sees more. It is used where it is installed
# with its runtime. The thread sanitizer is GCC's.
CLANG ?= $(firstword $(foreach c,clang++-16 clang++-19 clang++-18 clang++-17 clang++,$(shell command -v $c)))
ASAN_COMPILER = $(if $(CLANG),$(shell echo 'int main() {}' | $(CLANG) -fsanitize=address -x c++ - -o /dev/null 2>/dev/null \
  && echo -DCMAKE_CXX_COMPILER=$(CLANG)))

test-asan:  ## unit tests under the address and undefined behaviour sanitizers
	$(call heading,asan: build and unit tests)
	@cmake --preset asan $(ASAN_COMPILER) >/dev/null
	@cmake --build build-asan -j $(JOBS) --target unit_tests
	@$(call all_but,$(ASAN_SKIPS)) scripts/run_tests build-asan $(TEST_JOBS) -L '^unit(_threads)?$$'

test-tsan:  ## unit tests that use threads, under the thread sanitizer
	$(call heading,tsan: build and threaded unit tests)
	@cmake --preset tsan >/dev/null
	@cmake --build build-tsan -j $(JOBS) --target thread_tests
	@$(call all_but,$(TSAN_SKIPS)) $(FIXED_LAYOUT) scripts/run_tests build-tsan $(TEST_JOBS) -L '^unit_threads$$'

faults:  ## jobs under simulated faults, one per seed: make faults SEEDS=10000
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS) --target oktopk_faults
	build/tests/oktopk_faults --seeds 1..$(or $(SEEDS),1000)
	build/tests/oktopk_faults --elastic --seeds 1..$(or $(SEEDS),1000)

# torchrun needs a Python with torch and this package: make test-python makes one.
kill:  ## kill and stop ranks of training runs at random points, and judge the others: make kill POINTS=100
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS) --target oktopk_tool oktopk_kill_rank
	python3 tests/kill/kill.py --points $(or $(POINTS),100) --transport $(or $(TRANSPORTS),threads$(comma)tcp$(comma)elastic$(comma)mpi) \
	  --jobs $(JOBS) $(if $(wildcard .venv/bin/python),--python .venv/bin/python)

# After make test-python. The table has DDP without a hook beside ours: torch itself fails in some of the ways.
ends:  ## ways to end a two-rank PyTorch job, each many times, and how its processes end: make ends RUNS=200
	.venv/bin/python tests/python/ends.py --runs $(or $(RUNS),20) --jobs $(JOBS)

# Seconds are those of each target. Findings are left in build-fuzz/found; copy them to fuzz/corpus once they are mended.
FUZZ_TARGETS = arbiter collectives dump frame handshake link rendezvous slots state text trace
FUZZ_FLAGS = -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all

fuzz:  ## every decoder under libFuzzer with ASan and UBSan: make fuzz SECONDS=60
	@[ -n "$(CLANG)" ] || { echo "make fuzz needs clang 16 or newer (clang-16, libclang-rt-16-dev)"; exit 1; }
	@cmake -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=$(CLANG) -DCMAKE_CXX_FLAGS='$(FUZZ_FLAGS)' \
	  -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1 -fno-omit-frame-pointer' -DOKTOPK_WITH_MPI=OFF -DOKTOPK_WITH_CUDA=OFF \
	  -DOKTOPK_BUILD_TOOLS=OFF -DOKTOPK_BUILD_EXAMPLES=OFF -DOKTOPK_INSTALL=OFF -DOKTOPK_FUZZ=ON >/dev/null
	@cmake --build build-fuzz -j $(JOBS) --target $(FUZZ_TARGETS:%=fuzz_%)
	@for t in $(FUZZ_TARGETS); do mkdir -p build-fuzz/corpus/$$t build-fuzz/found; echo "=== $$t"; \
	  build-fuzz/fuzz/fuzz_$$t -max_total_time=$(or $(SECONDS),60) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	  -artifact_prefix=build-fuzz/found/$$t- build-fuzz/corpus/$$t fuzz/corpus/$$t 2>&1 | grep -E 'stat::number|ERROR|SUMMARY|Test unit|cov:.*DONE' ; \
	done

soak:  ## random steps with flat memory and file descriptors: make soak STEPS=100000
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS) --target oktopk_soak
	build/tests/oktopk_soak $(or $(STEPS),100000)

wheels:  ## wheels for every Python on this machine and the source distribution in dist/, each tested in a bare environment
	@scripts/wheels

# The research tools, which the product does without: lab/README.md.
oktopk-lab: build
	@cmake --build build -j $(JOBS) --target oktopk_lab

# After test-python, which makes .venv. The C++ tools have their tests in test-release.
lab: oktopk-lab  ## the research tools: build/oktopk-lab, and a short test of each tool of lab/
	$(call heading,lab: the research tools and their tests)
	@cmake --build build -j $(JOBS) --target test_lab
	@scripts/run_tests build $(TEST_JOBS) -L '^lab$$'
	@.venv/bin/python -m pytest -q -n $(PYTEST_JOBS) --dist worksteal lab/tests

bench: oktopk-lab  ## kernels beside their limits, top-k beside other tools, steps over sizes
	build/oktopk-lab kernels --density 0.01,0.001
	@if python3 -c 'import numpy' 2>/dev/null; then python3 lab/bench/compare_topk.py; else echo "NOT RUN: compare_topk.py needs numpy"; fi
	build/oktopk bench --preset all --ranks 4 -b 64K -e 16M --density 0.01

report: oktopk-lab  ## weak scaling on simulated platforms, as a page: report/scaling.html (hours; REPORT=--quick for a minute)
	$(REPORT_PYTHON) lab/scaling/report.py --out report $(REPORT)

format:  ## clang-format in place
	@$(SOURCES) | xargs -r clang-format -i

# clang-tidy over what the release build compiles in the folders given, several sources at once as there: the headers are
# read once, and what it finds in the sources is an error. That one source includes others is the build's doing.
TIDY = cmake --preset release >/dev/null && grep -oP '"file": "\K[^"]+' build/compile_commands.json | grep -E $(1) | grep -v '\.cu$$' \
  | xargs -r -P $(JOBS) -n 1 clang-tidy -p build --quiet --warnings-as-errors='*' --checks=-bugprone-suspicious-include 2>&1 \
  | { grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated' || true; }

check-tidy:  ## clang-tidy finds nothing in the library
	$(call heading,clang-tidy: the library)
	@if ! command -v clang-tidy >/dev/null; then \
	  echo "NOT RUN: clang-tidy is not installed"; [ -z "$${CI:-}" ]; exit; fi; \
	$(call TIDY,'/build/lib/oktopk/|^$(CURDIR)/oktopk/')

lint: bootstrap  ## clang-tidy over all our code
	@$(call TIDY,.)

clean:  ## remove all build directories
	rm -rf build build-debug build-asan build-tsan build-fuzz build-python build-docs build-wheels dist .venv
