#!/usr/bin/env bash
# Writes requirements.lock anew from pyproject.toml. Needs `uv` (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --extra train --extra dev --quiet --no-header --no-emit-index-url \
    --no-annotate --python-version 3.11 --upgrade --output-file requirements.lock
# torch's CUDA libraries are left to pip: it adds what the torch build at hand asks for, and a
# CPU build asks for none.
sed -i -E '/^(nvidia|cuda|triton)/d' requirements.lock
# The editable install builds with the tools of the environment, so they are pinned as well.
uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --python-version 3.11 - \
    <<<$'setuptools>=77\nmypy' >>requirements.lock
sort -u requirements.lock -o requirements.lock
