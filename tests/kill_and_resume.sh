#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains, is killed on the way, resumes: the weights must be those of a run that was never
# interrupted, bit by bit; then resumes once more with another number of ranks. Killed once while the
# first preset runs, once while the second does.
#   kill_and_resume.sh OKTOPK [LAUNCHER...]      e.g. build/oktopk mpirun -n 3
set -euo pipefail
oktopk=$1
shift
launcher=("$@")
dir=$(mktemp -d)
trap 'pkill -9 -f "$dir" 2>/dev/null; rm -rf "$dir"' EXIT
transport=threads
[ $# -eq 0 ] || transport=mpi
ranks=3

# A run of a few seconds. Arguments: more options.
train() {
  "${launcher[@]}" "$oktopk" train --transport $transport --preset circulant,oktopk --model mlp:24 \
    --steps 1500 --batch 2 --density 0.05 --seed 3 "$@"
}
weights() { grep -E '^# (circulant|oktopk) +weights' "$1"; }

train --ranks $ranks >"$dir/whole"
weights "$dir/whole" >"$dir/whole.weights"

for preset in circulant oktopk; do
  states=$dir/states-$preset
  train --ranks $ranks --checkpoint "$states" --checkpoint-every 50 >"$dir/killed" 2>&1 &
  run=$!
  # However slow the machine is: until there is one, or the run ends without.
  until [ -e "$states/$preset.state" ]; do
    kill -0 $run 2>/dev/null || { echo "no checkpoint appeared"; exit 1; }
    sleep 0.02
  done
  pkill -9 -f "$states"
  wait || true
  if weights "$dir/killed" >/dev/null; then
    echo "the run was over before it was killed"
    exit 1
  fi
  train --ranks $ranks --resume "$states" >"$dir/resumed"
  weights "$dir/resumed" >"$dir/resumed.weights"
  diff "$dir/whole.weights" "$dir/resumed.weights"
done
train --ranks 2 --resume "$states" >"$dir/smaller"
grep -q 'equal on all ranks' "$dir/smaller"
echo "killed and resumed: the same weights"
