#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains, is killed on the way, resumes: the weights must be those of a run that was never
# interrupted, bit by bit; then resumes once more with another number of ranks.
#   kill_and_resume.sh OKTOPK [LAUNCHER...]      e.g. build/oktopk mpirun -n 3
set -euo pipefail
oktopk=$1
shift
dir=$(mktemp -d)
trap 'pkill -9 -f "$dir" 2>/dev/null; rm -rf "$dir"' EXIT
transport=threads
[ $# -eq 0 ] || transport=mpi

# A small run of about a second. Arguments: more options.
train() {
  "${launcher[@]}" "$oktopk" train --transport $transport --preset circulant,oktopk --model mlp:24 \
    --steps 600 --batch 2 --density 0.05 --seed 3 "$@"
}
weights() { grep -E '^# (circulant|oktopk) +weights' "$1"; }

launcher=("$@")
ranks=3
train --ranks $ranks >"$dir/whole"
train --ranks $ranks --checkpoint "$dir/states" --checkpoint-every 50 >"$dir/killed" 2>&1 &
for _ in $(seq 600); do
  if compgen -G "$dir/states/oktopk-*-0-of-$ranks.state" >/dev/null; then break; fi
  sleep 0.05
done
pkill -9 -f "$dir/states" || echo "note: the run was over before it could be killed"
wait || true
train --ranks $ranks --resume "$dir/states" >"$dir/resumed"
diff <(weights "$dir/whole") <(weights "$dir/resumed")
train --ranks 2 --resume "$dir/states" >"$dir/smaller"
grep -q 'equal on all ranks' "$dir/smaller"
echo "killed and resumed: the same weights"
