# tare from nothing: each target installs what it lacks (Debian 12, as root or through sudo), says what it does and
# repeats no work that is done.
#
#   make build    the binary, at build/release/tare
#   make test     build and run all tests
#   make demo     quantize a small real model, compare the results with the source, answer one chat prompt with each
#   make check    what CI checks (.ci/run)
#   make format   clang-format over all sources

JOBS ?= $(shell nproc)
PRESET ?= release
MODEL ?=

.PHONY: help build test demo check format clean setup

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@tools/setup.sh build

build: setup
	@tools/build.sh $(PRESET) $(JOBS) tare

test: setup
	@tools/build.sh $(PRESET) $(JOBS)
	@tools/run_tests.sh $(PRESET) $(JOBS)

demo: build
	@tools/setup.sh demo
	@tools/demo.sh "$(MODEL)"

check:
	@bash .ci/run

format:
	@tools/setup.sh checks
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i

clean:
	rm -rf build
