#!/usr/bin/env bash
# Writes requirements.lock anew from pyproject.toml. Needs `uv` (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --extra dev --quiet --no-header --no-emit-index-url \
    --no-annotate --python-version 3.11 --upgrade --output-file requirements.lock
# The editable install builds with the tools of the environment, so they are pinned as well.
uv pip compile --quiet --no-header --no-emit-index-url --no-annotate --python-version 3.11 - \
    <<<"setuptools>=77" >>requirements.lock
