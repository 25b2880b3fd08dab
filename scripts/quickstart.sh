#!/usr/bin/env bash
# Trains a small model twice with the same steps: as RATrain schedules it, and as plain 1F1B.
# As root, four processes get half a core and a slow link each; else they run without limits.
set -euo pipefail
cd "$(dirname "$0")/.."

ratrain=${RATRAIN:-.venv/bin/ratrain}
job=examples/quickstart.toml
steps=${STEPS:-80}
runs=${RUNS:-runs}
ours=$runs/quickstart-ratrain plain=$runs/quickstart-baseline-1f1b

bold='' normal=''
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then bold=$'\033[1m' normal=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$normal"; }

"$ratrain" train --help >/dev/null # a broken set-up is told here, before anything is removed
rm -rf "$ours" "$plain"
[ -f examples/quickstart-text.jsonl ] || "$ratrain" data --sample-text examples/quickstart-text.jsonl

say "1. As RATrain schedules it"
"$ratrain" train "$job" --steps "$steps" --run "$ours" --lab

say "2. The same steps as plain 1F1B"
"$ratrain" train "$job" --steps "$steps" --run "$plain" --lab --schedule baseline-1f1b

say "3. One step, predicted and measured (picture: $runs/quickstart.svg)"
"$ratrain" timeline "$ours" --svg "$runs/quickstart.svg"

say "4. What it has learned in $steps steps: letters, spaces, short words at most"
"$ratrain" sample "$ours" --prompt "The " --tokens 160 --temperature 0.7

say "5. Verdict: RATrain works here, after $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))). The two schedules compared:"
"$ratrain" compare "$ours" "$plain"

say "What next"
cat <<END
  $ratrain --help    all verbs
  $ratrain train $job \\
      --resume --run $ours --steps 200
                               train on
  $ratrain plan examples/small.toml
                               have a layout found for a job
  $ratrain profile -o here.toml
                               measure this machine, to plan for it
README.md lists more; docs/train.md explains the figures above.
END
