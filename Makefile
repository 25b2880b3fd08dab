# Two commands a newcomer needs: `make run` and `make test`. Each sets up all it needs first.
.PHONY: run reproduce test test-all soak docs lint clean lock

RATRAIN = .venv/bin/ratrain
SOURCES = pyproject.toml setup.py requirements.lock scripts/setup.sh scripts/install.py scripts/import_once.py \
    $(shell find src -name '*.c' -o -name '*.h')
COMPILED = $(shell grep -oE 'src/[a-z/_]+\.py' pyproject.toml)

run: .venv/ready
	@./scripts/quickstart.sh

reproduce: .venv/ready
	$(RATRAIN) reproduce
	$(RATRAIN) simulate examples/small.toml --picture

# The quick tests on two processors: files are handed out whole, since their tests share what they made.
test: checked-and-built
	.venv/bin/pytest -n 2 --dist loadfile -m "not slow"

# With what no lock names: Ray (70 MB) and schemas of Kubernetes (22 MB).
test-all: checked-and-built
	.venv/bin/pip install -q 'ray[train]>=2.50' kubernetes-validate cel-python
	.venv/bin/pytest -n 2 --dist loadfile

# Every case of the matrices, of which .ci/run draws a share. Then jobs drawn at random on real
# processes, half a minute each, and what takes long of the manual: make soak JOBS=20 FIRST=100
JOBS ?= 150
FIRST ?= 0
soak: .venv/ready-to-test
	.venv/bin/pytest -n 2 --dist loadfile -m matrix --backwards
	.venv/bin/python tests/runtime/soak.py --jobs $(JOBS) --first $(FIRST)
	.venv/bin/python tests/runtime/soak.py --unequal --jobs $(JOBS) --first $(FIRST)
	.venv/bin/python tests/runtime/soak_deferred.py
	.venv/bin/python tests/protocol/soak_protocol.py --seeds 100000
	RATRAIN_SOAK=1 .venv/bin/pytest tests/manual tests/lab/test_unequal_benchmark.py tests/plan/test_never_slower.py

# The manual as a site, in build/site. A link that leads nowhere is an error.
docs: .venv/ready-for-docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs --quiet build --strict
	@echo "built build/site/index.html"

# Types are checked while the transport is compiled: each takes a minute of one processor.
.PHONY: checked-and-built
checked-and-built: .venv/ready-to-lint
	@$(MAKE) --no-print-directory -j2 lint .venv/ready-to-test

lint: .venv/ready-to-lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

.venv/ready: $(SOURCES)
	@./scripts/setup.sh

.venv/ready-to-lint: .venv/ready requirements-test.lock
	@./scripts/setup.sh lint

.venv/ready-to-test: .venv/ready-to-lint $(COMPILED)
	@./scripts/setup.sh test

.venv/ready-for-docs: .venv/ready requirements-docs.lock
	@./scripts/setup.sh docs

lock: .venv/ready
	./scripts/lock.sh

clean:
	rm -rf .venv build dist src/*.egg-info
	find src -name '*.so' -delete
