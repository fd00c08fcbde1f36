#!/usr/bin/env bash
# Checks given wheels on a GPU machine that has torch and pytest and needs no network.
#
#   ci/gpu.sh LOGS WHEEL...
#
# LOGS gets one log a step. The wheels (ffpa-core, packs, and apache-tvm-ffi for machines without it) are installed
# beside the machine's own torch, into a folder of their own; nothing of the machine is changed. Steps go on after a
# failure, and the exit status is that of the first one that failed. BUILT, such as dev:sm_90a, says what the wheels were
# built from: a kernel of that preset that is not there is a failure. BENCH holds other arguments of the last step, the
# benchmark (default: the whole sweep).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -lt 2 ]; then
  echo "usage: $0 LOGS WHEEL..." >&2
  exit 2
fi
mkdir -p "$1"
logs="$(cd "$1" && pwd)"
shift
python="${PYTHON:-python3}"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
status=0

step() {
  local name="$1" rc=0 start=$SECONDS
  shift
  "$@" >"$logs/$name.log" 2>&1 || rc=$?
  printf '%-12s rc %d  %4d s\n' "$name" "$rc" "$((SECONDS - start))" | tee -a "$logs/summary.txt"
  tail -n "${TAIL:-3}" "$logs/$name.log"
  if [ "$status" -eq 0 ]; then status=$rc; fi
}

: >"$logs/summary.txt"
step machine "$python" -c 'import sys, torch; print(sys.version, torch.__version__, torch.cuda.get_device_name())'
step install "$python" -m pip install --no-index --no-deps --target "$site" "$@"
if [ "$status" -ne 0 ]; then exit "$status"; fi
# The installed package comes first; from src/ the tests take only ffpa_build, which is no part of a wheel.
export PYTHONPATH="$site:$PWD/src"

step packs "$python" -m ffpa_attn packs
step smoke "$python" ci/smoke.py
# Only files with gpu tests, for the others import what this machine need not have. src/ comes after the installed
# packages, for the tests that use the build system.
mapfile -t files < <(grep -rlE 'mark\.gpu' --include='test_*.py' tests --exclude-dir=gpu)
export PYTHONPATH="$site:$PWD/src"
step tests "$python" -m pytest -p no:cacheprovider -o pythonpath= -m gpu -q -ra ${BUILT:+"--built=$BUILT"} tests/gpu "${files[@]}"
if command -v compute-sanitizer >/dev/null; then
  check=(compute-sanitizer --error-exitcode 9 --tool)
  step memcheck "${check[@]}" memcheck "$python" tests/gpu/sanitize_sample.py
  # Slow: only what calls run unasked.
  step racecheck "${check[@]}" racecheck "$python" tests/gpu/sanitize_sample.py auto
else
  echo "compute-sanitizer: not on this machine" | tee -a "$logs/summary.txt"
fi
step overhead "$python" -m ffpa_attn.bench overhead
read -ra bench <<<"${BENCH:---no-bwd}"
step bench "$python" -m ffpa_attn.bench "${bench[@]}" --verbose --json "$logs/bench.json" --markdown "$logs/bench.md"
exit "$status"
