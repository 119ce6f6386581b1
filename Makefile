# make build   a ready environment in .venv and the compiled extension (incremental)
# make train   train a small model with ortmodule_py      make test    all tests
# make quick   a sample of the quick tests                make bench   benchmarks
# make lint    format, style, types, layout               make cuda    CUDA build, and what depends on torch
# make newest  quick tests with the newest torch in an environment of its own
# make docs    the documentation as a site               make wheel   wheel, C++ library, sources in dist/
# make wheels  the wheels of all environments            make wheel-check   the wheel on a bare system

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: build environments train test quick bench bandwidth lint format cuda cuda_resources newest ctest \
	sanitize docs wheel wheels wheel-check clean

VENV      ?= .venv
TORCH     ?= torch==2.13.0
CUDA_VENV ?= .venv-cuda
CUDA_TORCH ?= torch==2.11.0
NEWEST_VENV  ?= .venv-newest
NEWEST_TORCH ?= torch==2.14.1
PY        := $(VENV)/bin/python
CUDA_PY   := $(CUDA_VENV)/bin/python
NEWEST_PY := $(NEWEST_VENV)/bin/python
JOBS      ?= $(shell nproc)
SANITIZER ?= address,undefined
comma     := ,
SANITIZED := build/sanitize_$(subst $(comma),_,$(SANITIZER))
PASSIVE   := OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
# Test processes; their OpenMP threads must not spin for each other's core.
# A file stays in one process: its tests share captures and fresh processes.
PYTEST    := -m pytest -n $(shell n=$$(nproc); echo $$((n < 8 ? n : 8))) --dist loadfile

CPP_SOURCES = $$(git ls-files --cached --others --exclude-standard 'csrc/**.cpp' 'csrc/**.h' \
	'csrc/**.cu' 'csrc/**.cuh' 'tests/cpp/**.cpp' 'tests/cpp/**.h' 'include/**.h' 'examples/**.cpp')
# Where the editable install of an environment keeps its CMake build.
build_dir = build/$$($(1) -c 'import sys; sys.path.insert(0, "tools"); import torch_facts as t; print(t.find_torch().build_tag)')
# Builds what changed and puts the extension beside the package.
build_extension = MAX_JOBS=$(JOBS) CMAKE_ARGS="-DORTMODULE_TESTS=$(2)" $(1) setup.py --quiet build_ext --inplace

# ---- environment: each stamp is remade only when what it depends on changed ---------------------
build: $(VENV)/.installed
	@$(call build_extension,$(PY),ON)

build/.system_packages: tools/install_system_packages.sh
	@mkdir -p build
	@tools/install_system_packages.sh
	@touch $@

$(VENV)/.requirements: requirements-dev.txt requirements-models.txt tools/make_venv.sh | build/.system_packages
	@tools/make_venv.sh $(VENV) "$(TORCH)" requirements-dev.txt python3.11 python3
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml setup.py
	@MAX_JOBS=$(JOBS) CMAKE_ARGS="-DORTMODULE_TESTS=ON" $(PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# Both environments at once, while nothing else runs: `make -j2 environments`.
environments: $(VENV)/.requirements $(CUDA_VENV)/.requirements

# ---- use ---------------------------------------------------------------------------------------
train: build
	OMP_WAIT_POLICY=PASSIVE $(PY) examples/train_gpt.py
	OMP_WAIT_POLICY=PASSIVE $(PY) examples/train_digits.py

bench: build bandwidth
	$(PY) -m benchmarks.run

# The CPU kernels beside the machine's copy bandwidth, one thread; needs no Python. Beside eager, at
# row lengths from 2 on: python -m benchmarks.small_rows.
bandwidth: build/.system_packages
	@cmake -G Ninja -S . -B build/bench -DORTMODULE_TORCH=OFF -DORTMODULE_BENCHMARKS=ON > build/bench.log \
	  && cmake --build build/bench --target ortm_kernels_cpu --parallel $(JOBS) >> build/bench.log \
	  || { cat build/bench.log; exit 1; }
	build/bench/ortm_kernels_cpu

# ---- tests -------------------------------------------------------------------------------------
ctest: build
	@folder=$(call build_dir,$(PY)); \
	flock $$folder/.lock cmake --build $$folder --target ortm_core_tests --parallel $(JOBS); \
	ctest --test-dir $$folder --output-on-failure --parallel $(JOBS)

# `make test TEST_OPTIONS="--slow-share 0/6"` takes a sixth of the slow tests.
test: ctest
	$(PASSIVE) $(PY) $(PYTEST) tests $(TEST_OPTIONS)

# One test of each file: under three minutes on two cores.
quick: ctest
	$(PASSIVE) $(PY) $(PYTEST) tests -m "not slow" --sample 1

# The C++ tests under the address and undefined-behaviour sanitizers, or SANITIZER=thread; needs no Python.
sanitize: build/.system_packages
	cmake -G Ninja -S . -B $(SANITIZED) -DORTMODULE_TORCH=OFF -DORTMODULE_TESTS=ON \
	  -DORTMODULE_SANITIZE=$(SANITIZER) -DORTMODULE_ISAS=avx2
	cmake --build $(SANITIZED) --parallel $(JOBS)
	ctest --test-dir $(SANITIZED) --output-on-failure --parallel $(JOBS)

lint: $(VENV)/.requirements
	clang-format --dry-run -Werror $(CPP_SOURCES)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) tools/lint_layout.py
	$(VENV)/bin/mypy

format: $(VENV)/.requirements
	clang-format -i $(CPP_SOURCES)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# ---- CUDA: compiles and links without a GPU; the quick tests run on the CPU ----------------------
# Of what depends on the version of torch or on CUDA a sample of each file: the rest sees nothing that
# `make test` does not see. `make cuda CUDA_TESTS=tests CUDA_SAMPLE=` runs all quick tests.
CUDA_SAMPLE ?= --sample 2
CUDA_TESTS ?= tests/compile tests/devices tests/dynamo tests/integrations tests/lower tests/ops/test_ops.py \
	tests/package tests/trace tests/wrap tests/optim/test_fp16_optimizer.py tests/runtime/test_torch_rng.py \
	tests/runtime/test_foreign_operators.py tests/runtime/test_absent_gradients.py

$(CUDA_VENV)/.requirements: requirements-dev.txt requirements-models.txt requirements-cuda.txt tools/make_venv.sh | build/.system_packages
	@tools/make_venv.sh $(CUDA_VENV) "$(CUDA_TORCH)" requirements-dev.txt python3.12
	@$(CUDA_PY) -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-cuda.txt </dev/null
	@touch $@

$(CUDA_VENV)/.installed: $(CUDA_VENV)/.requirements pyproject.toml setup.py
	@ORTMODULE_CUDA=ON MAX_JOBS=$(JOBS) CMAKE_ARGS="-DORTMODULE_TESTS=OFF" $(CUDA_PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

cuda: $(CUDA_VENV)/.installed
	@export ORTMODULE_CUDA=ON; $(call build_extension,$(CUDA_PY),OFF)
	$(CUDA_PY) -c 'import ortmodule_py; info = ortmodule_py.build_info(); print(info); assert info["cuda"]["architectures"]'
	$(CUDA_PY) -m tools.cuda_resources --report ortmodule_py/_C.cpython-312*.so
	$(PASSIVE) $(CUDA_PY) $(PYTEST) tests/devices/test_cuda_plans.py tests/devices/test_graph_convolutions.py  # skipped everywhere else
	$(PASSIVE) $(CUDA_PY) $(PYTEST) $(CUDA_TESTS) -m "not slow" $(CUDA_SAMPLE)

# Fails if a kernel spills or has a low occupancy without an allowance (tools/cuda_resources.py).
cuda_resources: cuda
	$(CUDA_PY) -m tools.cuda_resources ortmodule_py/_C.cpython-312*.so

# ---- the newest torch, without CUDA: its extension stands in for that of $(VENV) until `make build`
$(NEWEST_VENV)/.requirements: requirements-dev.txt requirements-models.txt tools/make_venv.sh | build/.system_packages
	@tools/make_venv.sh $(NEWEST_VENV) "$(NEWEST_TORCH)" requirements-dev.txt python3.11 python3
	@touch $@

$(NEWEST_VENV)/.installed: $(NEWEST_VENV)/.requirements pyproject.toml setup.py
	@ORTMODULE_CUDA=OFF MAX_JOBS=$(JOBS) CMAKE_ARGS="-DORTMODULE_TESTS=OFF" $(NEWEST_PY) -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

newest: $(NEWEST_VENV)/.installed
	@export ORTMODULE_CUDA=OFF; $(call build_extension,$(NEWEST_PY),OFF)
	ORTMODULE_CUDA=OFF $(PASSIVE) $(NEWEST_PY) $(PYTEST) tests -m "not slow"

# ---- releases: not part of `.ci/run` -------------------------------------------------------------
# Each wheel fits one torch and one Python and lies in a folder of its own.
MATRIX_PYTHON  ?= python3.13
MATRIX_VENV    ?= .venv-matrix
MATRIX_PY      := $(MATRIX_VENV)/bin/python
release = MAX_JOBS=$(JOBS) $(1) -m tools.release.build
release_tag = $$($(PY) -c 'from tools.release.build import folder_name as f; print(f())')

%/.release_tools: requirements-release.txt | build
	@$(@D)/bin/python -m pip install --quiet -r requirements-release.txt
	@touch $@

wheel: build $(VENV)/.release_tools
	@$(call release,$(PY))
	@$(call build_extension,$(PY),ON)

wheel-check: wheel
	$(PY) -m tools.release.check_wheel dist/$(release_tag)/*.whl --root build/bare_system

$(MATRIX_VENV)/.requirements: requirements-dev.txt tools/make_venv.sh | build/.system_packages
	@tools/make_venv.sh $(MATRIX_VENV) "$(TORCH)" requirements-dev.txt $(MATRIX_PYTHON)
	@touch $@

wheels: wheel $(NEWEST_VENV)/.requirements $(CUDA_VENV)/.requirements $(MATRIX_VENV)/.requirements
	@for python in $(NEWEST_PY) $(MATRIX_PY); do \
	  $$python -m pip install --quiet -r requirements-release.txt; \
	  ORTMODULE_CUDA=OFF $(call release,$$python) --only wheel; done
	@$(CUDA_PY) -m pip install --quiet -r requirements-release.txt
	@ORTMODULE_CUDA=ON $(call release,$(CUDA_PY)) --only wheel

# ---- documentation: warnings and broken links are errors -----------------------------------------
$(VENV)/.docs: requirements-docs.txt $(VENV)/.requirements
	@command -v doxygen > /dev/null || { echo "doxygen was not found; run: apt-get install doxygen" >&2; exit 1; }
	@$(PY) -m pip install --quiet -r requirements-docs.txt
	@touch $@

docs: build $(VENV)/.docs
	$(PY) -m sphinx -q -b html -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	$(PY) -m tools.check_site docs/_build/html

clean:
	rm -rf build ortmodule_py/_*.so ortmodule_py/_C.*.json ortmodule_py/lib*.so* $(VENV)/.installed $(CUDA_VENV)/.installed $(NEWEST_VENV)/.installed
