#!/usr/bin/env bash
# Makes .venv from the lock file on a fresh Debian or Ubuntu machine. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

python=$(command -v python3.13 || command -v python3.12 || command -v python3.11 || command -v python3 || true)
for candidate in python3 python3.11 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
missing=()
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
command -v cc >/dev/null || missing+=(gcc libc6-dev)
[ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/Python.h" ] || missing+=(python3-dev)
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]} with apt-get"
    as_root apt-get update -q
    as_root apt-get install -q -y --no-install-recommends "${missing[@]}"
    python=${python:-python3}
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "error: RATrain needs Python 3.11 or newer; $("$python" --version) found" >&2
    exit 1
}

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.lock
find src -name '*.so' -delete # one whose source is gone would still be imported
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch .venv/ready
