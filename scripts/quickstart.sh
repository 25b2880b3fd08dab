#!/usr/bin/env bash
# Trains a small model twice with the same steps: as RATrain plans it, and as plain 1F1B. Where labs
# can be made (as root), on four unequal machines and a slow switch; elsewhere on four processes
# without limits, which are alike.
set -euo pipefail
cd "$(dirname "$0")/.."

ratrain=${RATRAIN:-.venv/bin/ratrain}
steps=${STEPS:-60}
runs=${RUNS:-runs}
ours=$runs/quickstart-ratrain plain=$runs/quickstart-baseline-1f1b

bold='' normal=''
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ]; then bold=$'\033[1m' normal=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$normal"; }

"$ratrain" train --help >/dev/null # a broken set-up is told here, before anything is removed
rm -rf "$ours" "$plain"
[ -f examples/quickstart-text.jsonl ] || "$ratrain" data --sample-text examples/quickstart-text.jsonl

if "$ratrain" lab run examples/clusters/four-machines.toml -- true >/dev/null 2>&1; then
    job=examples/unequal.toml
    how="planned for four unequal machines" baseline="with equal layers, as plain 1F1B"
    lab=(--lab) equal=(--set layout.pipeline=2 --set layout.data=2)
else
    job=examples/quickstart.toml
    how="as RATrain schedules it" baseline="as plain 1F1B"
    lab=() equal=()
    say "No root here, so no lab: four alike processes, where little is to be gained"
fi

say "1. A small model, $how"
"$ratrain" train "$job" --steps "$steps" --run "$ours" "${lab[@]}"

say "2. The same steps $baseline"
"$ratrain" train "$job" --steps "$steps" --run "$plain" --schedule baseline-1f1b \
    "${lab[@]}" "${equal[@]}"

say "3. One step, predicted and measured (picture: $runs/quickstart.svg)"
"$ratrain" timeline "$ours" --svg "$runs/quickstart.svg"

say "4. What it has learned in $steps steps: letters, spaces, short words at most"
"$ratrain" sample "$ours" --prompt "The " --tokens 160 --temperature 0.7

say "5. Verdict: RATrain works here, after $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))). The two runs compared:"
"$ratrain" compare "$ours" "$plain"

say "What next"
cat <<END
  $ratrain --help    all verbs
  $ratrain train $job \\
      --resume --run $ours --steps 200
                               train on
  $ratrain explain $job
                               why this layout, and what binds
  $ratrain profile -o here.toml
                               measure this machine, to plan for it
README.md lists more; docs/how-to/train.md explains the figures above.
END
