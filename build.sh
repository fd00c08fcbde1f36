#!/usr/bin/env bash
# Compiles kernels and installs ffpa into the Python at hand; `./build.sh --help` lists the options, which are
# explained in docs/build-flags.md. PYTHON names another interpreter.
set -euo pipefail
tree="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PYTHONPATH="$tree/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m ffpa_build install --root "$tree" "$@"
