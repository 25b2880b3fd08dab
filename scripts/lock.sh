#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml: requirements.lock (what running needs),
# requirements-test.lock (what tests need besides) and requirements-docs.lock (what the manual's site
# needs besides running). Needs `uv` (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."

compile() { # prints the pins of its arguments, sorted
    # torch's CUDA libraries are left to pip: it adds what the torch build at hand asks for, and a
    # CPU build asks for none. Triton is a test's, of the version that torch's CUDA builds ask for.
    uv pip compile "$@" --quiet --no-header --no-emit-index-url --no-annotate \
        --python-version 3.11 --upgrade | sed -E '/^(nvidia|cuda)/d' | LC_ALL=C sort -u
}

# The editable install builds with the tools of the environment, so they are pinned as well.
compile pyproject.toml --extra train - <<<'setuptools>=77' | sed '/^triton/d' >requirements.lock.new
compile pyproject.toml --extra train --extra dev --constraint requirements.lock.new - <<<'mypy' >all.new
LC_ALL=C comm -13 requirements.lock.new all.new >requirements-test.lock
compile pyproject.toml --extra train --extra docs --constraint all.new >docs.new
LC_ALL=C comm -13 requirements.lock.new docs.new | sed '/^triton/d' >requirements-docs.lock
mv requirements.lock.new requirements.lock
rm all.new docs.new
