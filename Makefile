# make run    all sections, then the book from them (first use: makes .venv and installs, some minutes)
# make test   the tests of the package, in about three minutes; TESTS=chapter those of the sections and the book,
#             TESTS=all everything, with whole sections and further sizes
# make install lint types clean
# make bundle all that a machine without a network needs, into bundle/; there, WHEELS=bundle/wheels
#             installs without any index (docs/offline.md); BUNDLE_ARGS="--python 3.12 --kind cuda12" (or cuda13)
# make book  the book, from docs/, experiments/ and the kept runs, into the folder site, without a network;
#             RESULTS=results shows your own runs instead, OUT=DIR names another folder
#
# With an NVIDIA driver, JAX's packages for CUDA 12 come too; KIND=cuda13 takes those for CUDA 13, KIND=cpu none.
# PYTHON=python3.12 chooses the interpreter that makes the environment, VENV=DIR where to put it;
# ARGS="hybridize --smoke" replaces what `make run` runs, PYTEST_ARGS are handed to pytest.

PYTHON ?= python3
# Not ?=: variables of such common names in the environment were meant for something else.
VENV := .venv
ARGS := all
OUT := results
PYTEST_ARGS :=
TESTS := package
WORKERS := 2
WHEELS :=
BUNDLE_ARGS :=
VENV_ARGS :=

PY := $(VENV)/bin/python
# A driver that appears later gets its own stamp, so the CUDA packages are then installed too. KIND=cuda13 need be given once.
COMMA := ,
KIND := $(if $(wildcard $(VENV)/.installed-cuda13),cuda13,$(shell test -e /proc/driver/nvidia/version || nvidia-smi -L >/dev/null 2>&1 && echo cuda12 || echo cpu))
STAMP := $(VENV)/.installed-$(KIND)
PIP := $(PY) -m pip install --quiet --disable-pip-version-check $(if $(WHEELS),--no-index --find-links "$(WHEELS)")
KINDS := cpu cuda12 cuda13
EXTRAS := dev,book$(if $(filter-out cpu,$(KIND)),$(COMMA)$(KIND))
# Which wheels are too few, pip has said; this says what to do.
NOT_INSTALLED = { [ -z "$(WHEELS)" ] || echo "error: $(WHEELS) lacks wheels that $$($(PY) -V) ($(KIND)) needs; make the bundle for it, see docs/offline.md" >&2; exit 2; }

.PHONY: help install run test lint types bundle book clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

install: $(STAMP)

# The book is built even where a section failed; status 2 is a mistake in ARGS.
run: $(STAMP)
	@status=0; $(PY) -m jaxperf run --out "$(OUT)" $(ARGS) || status=$$?; \
	[ $$status -ne 2 ] || exit 2; \
	$(MAKE) --silent --no-print-directory book RESULTS="$(OUT)" OUT="$(OUT)/site" || { [ $$status -ne 0 ] || status=1; }; \
	exit $$status

MARKS_package := not chapter and not thorough
MARKS_chapter := chapter and not thorough
MARKS_all := chapter or not chapter

# worksteal gives each worker one half of the files in order, so most share their fixtures within one process.
test: $(STAMP)
	@[ -n "$(MARKS_$(TESTS))" ] || { echo "error: TESTS is '$(TESTS)'; it is package, chapter or all" >&2; exit 2; }
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKS_$(TESTS))" $(PYTEST_ARGS)

lint: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

types: $(STAMP)
	$(PY) -m mypy

bundle: $(STAMP)
	$(PY) tools/bundle.py $(BUNDLE_ARGS)

RESULTS := benchmarks/results/book
SITE = $(if $(filter command,$(firstword $(origin OUT))),$(OUT),site)

# A warning, as of a link that leads nowhere, is an error.
book: $(STAMP)
	@$(PY) -c "import myst_nb, sphinx_book_theme, sphinx_copybutton, sphinx_design" 2>/dev/null || $(PIP) --editable ".[book]" || $(NOT_INSTALLED)
	$(PY) -m sphinx -q -W --keep-going -j 2 -b html -d build/doctrees -D book_results="$(abspath $(RESULTS))" docs "$(SITE)"
	@echo "open $(SITE)/index.html"

clean:
	rm -rf .venv .venv-* build dist site jupyter_execute .pytest_cache .mypy_cache .ruff_cache
	find jaxperf experiments tools benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is taken up again. An environment whose pip does
# not answer was interrupted while it was made: it is made anew, but nothing else is ever cleared away.
$(STAMP): pyproject.toml
	@[ -z "$(WHEELS)" ] || [ -d "$(WHEELS)" ] || { echo "error: no folder $(WHEELS); 'make bundle' makes one where there is a network" >&2; exit 2; }
	@[ -n "$(filter $(KINDS),$(KIND))" ] || { echo "error: KIND is '$(KIND)'; it is cpu, cuda12 or cuda13, by default what this machine has" >&2; exit 2; }
	@rm -f $(VENV)/.installed-*
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); name another: make PYTHON=/path/to/python3.11" >&2; exit 2; }; \
	  $(PYTHON) -c '' || { echo "error: $(PYTHON) does not start; name another: make PYTHON=/path/to/python3.11" >&2; exit 2; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 2; }; \
	  if [ -e $(VENV) ] && [ ! -f $(VENV)/pyvenv.cfg ]; then echo "error: $(VENV) is not a virtual environment; remove it, or name another: make VENV=DIR" >&2; exit 2; fi; \
	  $(PYTHON) -m venv --clear $(VENV_ARGS) $(VENV); \
	fi
	@echo "installing jaxperf into $(VENV) ($(KIND)); the first time takes some minutes"
	@$(PIP) --editable ".[$(EXTRAS)]" || $(NOT_INSTALLED)
	@touch $(STAMP)
