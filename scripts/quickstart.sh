#!/usr/bin/env bash
# Trains a small model twice with the same steps: as RATrain schedules it, and as plain 1F1B.
# As root, four processes get half a core and a slow link each; else they run without limits.
set -euo pipefail
cd "$(dirname "$0")/.."

ratrain=${RATRAIN:-.venv/bin/ratrain}
job=examples/quickstart.toml
steps=${STEPS:-120}
ours=runs/quickstart-ratrain plain=runs/quickstart-baseline-1f1b

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

"$ratrain" train --help >/dev/null # a broken set-up is told here, before anything is removed
rm -rf "$ours" "$plain"
[ -f examples/quickstart-text.jsonl ] || "$ratrain" data --sample-text examples/quickstart-text.jsonl

say "1. As RATrain schedules it"
"$ratrain" train "$job" --steps "$steps" --run "$ours" --lab

say "2. The same steps as plain 1F1B"
"$ratrain" train "$job" --steps "$steps" --run "$plain" --lab --schedule baseline-1f1b

say "3. Are they the same, and which is faster?"
"$ratrain" compare "$ours" "$plain"

say "4. One step, predicted and measured (picture: runs/quickstart.svg)"
"$ratrain" timeline "$ours" --svg runs/quickstart.svg

say "5. What it has learned in $steps steps: letters, spaces, short words at most"
"$ratrain" sample "$ours" --prompt "The " --tokens 160 --temperature 0.7
