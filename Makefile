# Every target makes what it needs: a fresh clone, Python 3.11 or newer and make are enough.

PYTHON ?= python3
VENV ?= .venv
TYPES_VENV ?= .venv-types
BIN := $(VENV)/bin
# files of tests that run at once: more than two cores, as many tests wait
AT_ONCE ?= 3
PIP := -m pip install --quiet --constraint constraints.txt

# compiled files make the launcher start in half the time, whatever the environment says
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-zendnn test-ipex test-clusters coverage lint types docs wheel clean

demo: $(VENV)/installed  ## See a training run, and how much faster it was than plain python.
	@$(BIN)/cputrain launch examples/paint.py
	@$(BIN)/cputrain bench --repeats 2 examples/paint.py

# files of tests beside one another
PYTEST = -m pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

test: AT_ONCE = 4
test: $(VENV)/tested  ## Every promise: what a change must pass before it is proposed.
	$(BIN)/python $(PYTEST) -m "not long"

# what fails beside another file is run again with the machine to itself; not so where a test was
# skipped that could have run or a folder took too long, which have exit codes of their own
test-all: $(VENV)/tested  ## Every test, those that are long by their number of cases included.
	$(BIN)/python $(PYTEST) || { test $$? -eq 1 && \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

test-zendnn: $(VENV)-zendnn/installed  ## The proof of ZenDNN, in an environment of its own.
	$(VENV)-zendnn/bin/python -m pytest tests/backends/zendnn.py

test-ipex: $(VENV)-ipex/installed  ## The proof of Intel's extension, with the torch that it needs.
	$(VENV)-ipex/bin/python -m pytest tests/backends/ipex.py

test-clusters: $(VENV)-clusters/installed  ## Ray and Dask, in an environment of their own.
	$(VENV)-clusters/bin/python -m pytest tests/many/clusters.py

coverage: $(VENV)/tested  ## Lines that `make test` and `make test-all` run; with Python 3.12 or newer.
	@$(BIN)/python $(PIP) 'coverage>=7.10'
	@for tests in "not long" "long or not long"; do \
	    $(BIN)/coverage erase; \
	    COVERAGE_CORE=sysmon $(BIN)/coverage run $(PYTEST) --execute -m "$$tests" -qq --tb=no; \
	    $(BIN)/coverage combine --quiet; \
	    $(BIN)/coverage report --include='cputrain/*,launch/*' | tail -n 1; done

lint: $(VENV)/tested  ## Style.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/tested  ## Types, checked on the wheel as users install it.
	rm -rf build dist $(TYPES_VENV)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m venv $(TYPES_VENV)
	$(TYPES_VENV)/bin/python -m pip install --quiet --no-deps dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$($(TYPES_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth"
	cd $(TYPES_VENV) && ../$(BIN)/mypy --config-file ../pyproject.toml \
	    --python-executable bin/python -p cputrain

docs: $(VENV)/documented  ## The documentation, in site/; a warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(VENV)-zendnn $(VENV)-ipex $(VENV)-clusters $(TYPES_VENV) build dist site *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "cputrain needs Python 3.11 or newer; this is %s. Say: make PYTHON=python3.11" \
	    % sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "A virtual environment could not be made;\
	 on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing into $(VENV), once" >&2
	@$(BIN)/python $(PIP) --editable .
	@$(BIN)/python -m compileall -q cputrain launch
	@touch $@

$(VENV)/tested: $(VENV)/installed
	@$(BIN)/python $(PIP) --editable '.[test]'
	@# in a folder of its own: others look for it, and it may be one for a torch with CUDA; timm needs it
	@$(BIN)/python $(PIP) --no-deps --target $(VENV)/torchvision torchvision pillow timm
	@touch $@

$(VENV)-zendnn/installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)-zendnn
	@$(VENV)-zendnn/bin/python $(PIP) --editable '.[zendnn]' pytest hypothesis
	@touch $@

$(VENV)-clusters/installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)-clusters
	@$(VENV)-clusters/bin/python $(PIP) --editable '.[clusters]' pytest hypothesis
	@touch $@

# (no constraints: its torch is another)
$(VENV)-ipex/installed: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-ipex
	@$(VENV)-ipex/bin/python -m pip install --quiet --editable '.[ipex]' pytest hypothesis
	@touch $@

$(VENV)/documented: $(VENV)/installed
	@$(BIN)/python $(PIP) --editable '.[docs]'
	@touch $@
