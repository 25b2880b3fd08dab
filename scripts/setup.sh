#!/usr/bin/env bash
# Makes .venv on a fresh Debian or Ubuntu machine. Safe to run again: what is there stays.
#   scripts/setup.sh         what running needs
#   scripts/setup.sh lint    and the packages that checks and tests need, after the above
#   scripts/setup.sh test    and what tests need compiled, after these two
#   scripts/setup.sh docs    and what builds the manual as a site
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() { # the first Python that is new enough; nothing where there is none
    for candidate in python3 python3.11 python3.12 python3.13; do
        if recent "$candidate"; then echo "$candidate" && return; fi
    done
}

install_system_packages() { # those of a C compiler, Python and its headers that are missing
    local missing=() headers
    "${python:-python3}" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    headers=$("${python:-python3}" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null) || true
    [ -f "$headers/Python.h" ] || missing+=(python3-dev)
    [ ${#missing[@]} = 0 ] && return
    say "Installing ${missing[*]} with apt-get:"
    as_root apt-get update -q
    as_root apt-get install -q -y --no-install-recommends "${missing[@]}"
}

set_up_to_run() {
    python=$(find_python)
    install_system_packages
    python=$(find_python)
    if [ -z "$python" ]; then
        say "error: RATrain needs Python 3.11 or newer; this machine has $(python3 --version)" >&2
        exit 1
    fi
    [ -x .venv/bin/python ] || { say "Making .venv ($("$python" --version))" && "$python" -m venv .venv; }
    say "Installing what RATrain needs to run ($(wc -l <requirements.lock) packages):"
    .venv/bin/python scripts/install.py requirements.lock
    say "Compiling its C parts (some ten seconds)"
    find src -name '*.so' -delete # one whose source is gone would still be imported
    .venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
    say "Compiling the Python modules that every process imports (some ten seconds)"
    .venv/bin/python scripts/import_once.py
    touch .venv/ready
    say "Ready to run after $((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))"
}

set_up_to_lint() {
    say "Installing what tests need ($(wc -l <requirements-test.lock) packages):"
    .venv/bin/python scripts/install.py requirements-test.lock
    touch .venv/ready-to-lint
}

set_up_to_test() {
    say "Compiling the transport with mypyc (about a minute)"
    .venv/bin/python setup.py --quiet build_ext --inplace >.venv/build.log 2>&1 || {
        cat .venv/build.log >&2
        exit 1
    }
    .venv/bin/python scripts/import_once.py _pytest.main hypothesis pyte transformers.models.llama
    touch .venv/ready-to-test
    say "Ready to test after $((SECONDS / 60)):$(printf %02d $((SECONDS % 60)))"
}

set_up_for_docs() {
    say "Installing what the manual's site needs ($(wc -l <requirements-docs.lock) packages):"
    .venv/bin/python scripts/install.py requirements-docs.lock
    touch .venv/ready-for-docs
}

case "${1:-run}" in
lint) set_up_to_lint ;;
test) set_up_to_test ;;
docs) set_up_for_docs ;;
*) set_up_to_run ;;
esac
