# Two commands a newcomer needs: `make run` and `make test`. Each sets up all it needs first.
.PHONY: run reproduce test test-all lint clean lock

RATRAIN = .venv/bin/ratrain
SOURCES = pyproject.toml setup.py requirements.lock scripts/setup.sh \
    $(shell find src -name '*.c' -o -name '*.h') $(shell grep -oE 'src/[a-z/_]+\.py' pyproject.toml)

run: .venv/ready
	./scripts/quickstart.sh

reproduce: .venv/ready
	$(RATRAIN) reproduce
	$(RATRAIN) simulate examples/small.toml --picture

test: .venv/ready lint
	.venv/bin/pytest -m "not slow"

test-all: .venv/ready lint
	.venv/bin/pytest

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

.venv/ready: $(SOURCES)
	./scripts/setup.sh

lock: .venv/ready
	./scripts/lock.sh

clean:
	rm -rf .venv build dist src/*.egg-info
	find src -name '*.so' -delete
