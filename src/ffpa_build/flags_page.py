"""`python -m ffpa_build.flags_page check | write`: docs/build-flags.md from the table of flags."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ffpa_attn.config import FORCE_VARIABLES
from ffpa_build.flags import BUILD, INSTALL, SELECTION, Flag, group
from ffpa_build.model import Spec
from ffpa_build.spec import load_spec

PAGE = Path("docs", "build-flags.md")

_PAGE = """\
<!-- Made from src/ffpa_build/flags.py: python -m ffpa_build.flags_page write -->
# Build flags

`./build.sh` compiles kernels and installs ffpa into the Python at hand (`PYTHON=` names another). It needs the
requirements of the dependency group `build`: `python -m pip install --group build`.

```console
$ ./build.sh --arch sm_120f --jobs 64
$ ./build.sh --arch 90 --headdim 128,512 --stages 3 --editable
$ ENABLE_FFPA_CUDA_INPUT_FP16=1 ./build.sh --arch ada --dry-run
```

`python -m ffpa_build plan` and `build` take the flags of the first two tables; a wheel build (`pip wheel`,
`ci/wheels.py`) reads their variables. An option comes before a variable, a variable before the preset. Lists are
comma-separated. A value that is not allowed, or that contradicts another variable, is an error that names both; so is
an unknown `FFPA_BUILD_*`. Any other unknown `FFPA_*` or `ENABLE_FFPA_*` gets a note.

## What is compiled

@selection@
A variable that is 0 or 1 changes the list of the preset: 1 adds to it, 0 takes away, unset leaves it. Set beside the
variable of the list itself it has to agree with it; an option for the list comes before both. Where the tree has no
kernels of a family, 1 gets a note.

`TORCH_CUDA_ARCH_LIST` (`8.0;8.9;9.0+PTX`) is looked at where neither `--arch` nor `FFPA_BUILD_ARCH` nor a preset is
given. A capability without an arch of its own goes to the arch that loads on it, 8.6 to sm_80. One without kernels is
an error. `+PTX` is left out with a note, because packs hold cubins. `MAX_JOBS`, `NVCC_THREADS` and `CXX` stand in for
`FFPA_BUILD_JOBS`, `FFPA_BUILD_NVCC_THREADS` and `FFPA_BUILD_CXX`.

## What a build without flags holds

@presets@
`ENABLE_FFPA_CUDA_IMPL` is 1 here, for a build without kernels has little use; 0 gives `ffpa-core` with the runtime and
the launcher and no pack (`python -m ffpa_attn packs` says that it is absent). So does a build whose archs are all in
other packs, such as `--arch sm_120f`. Both have the version label `nokernels`.

A call that needs a kernel that no installed pack has raises `KernelNotFoundError`, or says in its warning when it goes
to SDPA, with the flags that bring it.

## How it is compiled

@build@
## build.sh

`build.sh` runs `python -m ffpa_build install`. The kernels are compiled into the cache first, with progress and every
failure; then pip builds and installs `ffpa-core`, each pack that has kernels of the selection, and `ffpa`. Both get the
same variables, which `--dry-run` prints.

@install@
- `--editable` installs `ffpa-core` with `pip install -e`: Python imports the runtime from `src/`, where the launcher is
  put beside it. Kernels are copied; after a change of kernel sources run it again.
- `--clean` removes before it builds. `python -m ffpa_build clean` only removes.
- `--shm` keeps the cache in `/dev/shm`, in a folder that no other user may write to; it is lost at a restart.
- `--nvcc-threads` reaches nvcc (`--toolchain nvcc-13.0`). One kernel is one compile for one arch, so `--jobs` is what
  makes a build faster.

## Debug dispatch

`--debug-ext fp16` writes `debug = ["fp16"]` into the manifests. With such a pack,

@variables@
name the kernel (an id that `explain` shows) that every call of that family runs, as
`CUDABackend(kernel=...)` does for one call: `fp16` are calls without quantisation in either dtype. They are read once,
when `ffpa_attn_func` is first imported. Packs without the mark do not obey, and a warning says so. A kernel that
cannot run a call leaves that call without a kernel. The cubins are the same with and without the mark.
"""


def render(spec: Spec) -> str:
    """The page."""
    parts = {
        "selection": _table(group(SELECTION)),
        "presets": _presets(spec),
        "build": _table(group(BUILD)),
        "install": _table(group(INSTALL)),
        "variables": "".join(f"- `{name}`\n" for name in FORCE_VARIABLES.values()),
    }
    text = _PAGE
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def _table(flags: tuple[Flag, ...]) -> str:
    with_variables = any(row.variable for row in flags)
    names = ["option", *(["variable"] if with_variables else []), "default", "allowed", "selects"]
    rows = [names, ["---"] * len(names)]
    for row in flags:
        variables = " or ".join(f"`{name}`" for name in (row.variable, row.fallback) if name)
        cells = [_option(row), *([variables] if with_variables else []), row.default, row.allowed, row.help]
        rows.append(cells)
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def _option(row: Flag) -> str:
    return ", ".join(f"`{option}{' ' + row.metavar if row.metavar else ''}`" for option in row.options)


def _presets(spec: Spec) -> str:
    lines = ["| preset | dtypes | accumulators | features | stages | head dims |\n", "|---|---|---|---|---|---|\n"]
    for name in ("default", "release"):
        preset = spec.presets[name]
        dims = spec.head_dim_sets[preset.head_dims] if isinstance(preset.head_dims, str) else preset.head_dims
        cells = [preset.dtypes, preset.acc, preset.features, preset.stages, dims]
        lines.append(f"| `{name}` | {' | '.join(', '.join(map(str, cell)) or 'none' for cell in cells)} |\n")
    return "".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ffpa_build.flags_page", description=__doc__)
    parser.add_argument("action", choices=["check", "write"])
    options = parser.parse_args(arguments)
    spec = load_spec()
    path, text = spec.root / PAGE, render(spec)
    if options.action == "write":
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        print(f"{PAGE}: differs from the table of flags; run: {parser.prog} write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
