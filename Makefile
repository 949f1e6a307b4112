# SPDX-License-Identifier: Apache-2.0
# The front door: `make help` lists the targets. Everything here calls cmake, ctest or a script.
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# For the report's plots: the first one that has matplotlib.
REPORT_PYTHON = $(shell for p in .venv/bin/python python3 /usr/bin/python3; do "$$p" -c 'import matplotlib' 2>/dev/null && echo "$$p" && exit; done; echo python3)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# Our own C++ files: those in git or about to be.
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.cc' | sort -u | while read -r f; do [ ! -e "$$f" ] || echo "$$f"; done
# All tests, each that passed left out of the log.
# More tests at a time than cores: those about timeouts sleep most of their time.
CTEST = ctest -j $(shell echo $$((2 * $(JOBS)))) --output-on-failure --no-tests=error
QUIET = grep -vE '^ +Start +[0-9]+:|[0-9]+/[0-9]+ Test +\#[0-9]+:.* Passed'
# The thread sanitizer of older compilers needs a fixed address layout, where that can be asked for.
FIXED_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# The laws' full sweep over P and skip lists is left to the release build: under a sanitizer, three,
# four and eight ranks (with threads: three and four) show what twelve do, in a fraction of the time.
# Kernels run once alone and at each level with three threads.
ASAN_SKIPS = '_P(1|2|5|7|12)$$|CirculantSkipLaws.*/[014567]$$|/(scalar|avx2)_1$$|Node(World)?Laws.*_(host|2|4)$$'
# So are long runs that look at counts, and arithmetic that is the same on any number of threads.
TSAN_SKIPS = '_P(1|2|5|7|8|12)$$|CirculantSkipLaws.*/[014567]$$|^Circulant.run_|beyond_24_bits|^Sparse(Sgd|Adam)|/(scalar|avx2|avx512)_1$$|/scalar_3$$|DenseRegion|^RegionMemory|Node(World)?Laws.*_(host|2|4)$$'
heading = @printf '\n=== %s\n' "$(1)"

.PHONY: help bootstrap build demo test bench report format lint clean
.PHONY: check-format check-layers check-mirror check-tidy test-release test-asan test-tsan

help:  ## this list
	@grep -hE '^[a-z][a-z -]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-14s %s\n", $$1, $$2}'

bootstrap:  ## install what is missing (silent when nothing is)
	@scripts/bootstrap

build: bootstrap  ## release build: the command at build/oktopk
	@cmake --preset release >/dev/null
	@cmake --build build -j $(JOBS) --target oktopk_tool

demo: build  ## train with dense, topka, oktopk and circulant on 4 ranks; ends with a report to open
	build/oktopk train --ranks 4 --preset dense,topka,oktopk,circulant --density 0.01 --html oktopk-report.html

test: bootstrap check-format check-layers check-mirror test-release check-tidy test-asan test-tsan  ## everything CI runs
	$(call heading,all stages passed)

check-format:  ## clang-format finds nothing to change
	$(call heading,formatting)
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror

check-layers:  ## includes point downwards only
	$(call heading,layers)
	@python3 tools/check_layers.py

check-mirror:  ## every source has its test, every preset its page, no file is too long
	$(call heading,mirror)
	@python3 tools/check_mirror.py

test-release:  ## all tests of the release build, warnings as errors
	$(call heading,release: build and all tests)
	@cmake --preset release -DOKTOPK_WERROR=ON >/dev/null
	@cmake --build build -j $(JOBS)
	@$(CTEST) --test-dir build | $(QUIET)

test-asan:  ## unit tests under the address and undefined behaviour sanitizers
	$(call heading,asan: build and unit tests)
	@cmake --preset asan >/dev/null
	@cmake --build build-asan -j $(JOBS) --target unit_tests
	@$(CTEST) --test-dir build-asan -L '^unit(_threads)?$$' -E $(ASAN_SKIPS) | $(QUIET)

test-tsan:  ## unit tests that use threads, under the thread sanitizer
	$(call heading,tsan: build and threaded unit tests)
	@cmake --preset tsan >/dev/null
	@cmake --build build-tsan -j $(JOBS) --target thread_tests
	@$(FIXED_LAYOUT) $(CTEST) --test-dir build-tsan -L '^unit_threads$$' -E $(TSAN_SKIPS) | $(QUIET)

bench: build  ## micro-benchmarks, kernels beside their limits, top-k beside other tools, steps over sizes
	@cmake --build build -j $(JOBS) --target benchmarks
	@for b in build/bench/bench_*; do [ ! -x "$$b" ] || "$$b"; done
	build/oktopk kernels --density 0.01,0.001
	@if python3 -c 'import numpy' 2>/dev/null; then python3 bench/compare_topk.py; else echo "NOT RUN: bench/compare_topk.py needs numpy"; fi
	build/oktopk bench --preset all --ranks 4 -b 64K -e 16M --density 0.01

report: build  ## weak scaling on simulated platforms, as a page: report/scaling.html (an hour; REPORT=--quick for a minute)
	$(REPORT_PYTHON) scripts/scaling_report.py --oktopk build/oktopk --out report $(REPORT)

format:  ## clang-format in place
	@$(SOURCES) | xargs -r clang-format -i

# clang-tidy over the files that come in; what it finds is an error.
LINT = cmake --preset release >/dev/null && xargs -r -P $(JOBS) -n 2 clang-tidy -p build --quiet --warnings-as-errors='*'
LINT_QUIET = { grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated' || true; }

check-tidy:  ## clang-tidy finds nothing in the library
	$(call heading,clang-tidy: the library)
	@if ! command -v clang-tidy >/dev/null; then \
	  echo "NOT RUN: clang-tidy is not installed"; [ -z "$${CI:-}" ]; exit; fi; \
	$(SOURCES) | grep -E '^oktopk/.*\.cc$$' | grep -v '/no_' | { $(LINT); } 2>&1 | $(LINT_QUIET)

lint: bootstrap  ## clang-tidy over all our code
	@$(SOURCES) | grep '\.cc$$' | grep -vE '^tests/package/|/no_|/fuzz_' | { $(LINT); } 2>&1 | $(LINT_QUIET)

clean:  ## remove all build directories
	rm -rf build build-debug build-asan build-tsan
