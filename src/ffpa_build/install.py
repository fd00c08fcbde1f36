"""`python -m ffpa_build install`, which build.sh runs: compile a selection, then install its distributions with pip.

The kernels are compiled here first, where progress and failures can be seen; pip's builds then take them from the
cache.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ffpa_build.cache import default_cache_dir
from ffpa_build.distributions import CORE_PACK, META
from ffpa_build.environment import READ, Settings, as_variables
from ffpa_build.errors import BuildError, SelectionError
from ffpa_build.matrix import Matrix
from ffpa_build.model import Spec
from ffpa_build.outputs import everything, remove

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Steps:
    """What an install does, in order: removes `removed`, runs `compile` (None: no kernels) and then `pip`, both with
    `variables` instead of all that the environment says to builds."""

    removed: tuple[Path, ...]
    compile: tuple[str, ...] | None
    pip: tuple[str, ...]
    variables: Mapping[str, str]

    @classmethod
    def plan(cls, spec: Spec, found: Settings, matrix: Matrix, options: Mapping[str, Any]) -> Steps:
        """The steps of a selection. `options` maps arguments of `ffpa_build.flags` to what the command line gave."""
        found = replace(found, cache=found.cache or default_cache_dir())
        assert found.cache is not None
        preset = options.get("preset") or os.environ.get("FFPA_BUILD_PRESET")
        command = [sys.executable, "-m", "ffpa_build", "build", "--root", str(spec.root)]
        command += ["--pack", ",".join(found.selection.packs)]
        if options.get("ptxas_verbose"):
            command.append("--ptxas-verbose")
        pip = [sys.executable, "-m", "pip", "install"]
        if options.get("no_isolation"):
            pip.append("--no-build-isolation")
        core = spec.packs[CORE_PACK].distribution
        for distribution in _distributions(spec, found, matrix):
            # The others hold nothing that can be edited: packs are data, the meta distribution is empty.
            pip += ["--editable"] if options.get("editable") and distribution == core else []
            pip.append(str(spec.root / "packages" / distribution))
        return cls(
            removed=tuple(everything(spec, found.cache)) if options.get("clean") else (),
            compile=tuple(command) if matrix.variants else None,
            pip=tuple(pip),
            variables=as_variables(found, preset),
        )


def _distributions(spec: Spec, found: Settings, matrix: Matrix) -> list[str]:
    """Those with kernels of the selection, and the runtime, which everything needs, unless --pack leaves it out."""
    filled = {variant.pack for variant in matrix.variants}
    names = [pack.distribution for name, pack in spec.packs.items() if name in filled and name != CORE_PACK]
    if CORE_PACK in found.selection.packs:
        return [spec.packs[CORE_PACK].distribution, *names, META]
    return names


def run(steps: Steps, dry_run: bool) -> int:
    """Runs the steps, or prints them. Returns the exit status of the first that fails, or 0."""
    if dry_run:
        for path in steps.removed:
            print(f"remove {path}")
    else:
        for path in remove(steps.removed):
            print(f"removed {path}", flush=True)
    unset = [name for name in READ if name in os.environ and name not in steps.variables]
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    shown = [*(part for name in unset for part in ("-u", name)), *(f"{n}={v}" for n, v in steps.variables.items())]
    source = str(Path(__file__).resolve().parents[1])
    for command, extra in ((steps.compile, {"PYTHONPATH": source}), (steps.pip, {})):
        if command is None:
            continue
        print(shlex.join(["env", *shown, *(f"{n}={v}" for n, v in extra.items()), *command]), flush=True)
        if not dry_run:
            status = subprocess.run(command, env={**kept, **steps.variables, **extra}, check=False).returncode
            if status:
                return status
    return 0


def shared_memory_cache(named: str | None, create: bool) -> Path:
    """The cache folder of --shm: in memory, this user's alone. Raises SelectionError, BuildError."""
    if named is not None:
        raise SelectionError(f"--shm contradicts --cache-dir = {named!r}; give one of the two")
    if not sys.platform.startswith("linux") or not SHARED_MEMORY.is_dir():
        raise SelectionError(f"--shm needs {SHARED_MEMORY}, which Linux has; use --cache-dir here")
    folder = SHARED_MEMORY / f"ffpa-build-{os.getuid()}"
    if create:
        # Everybody may write to /dev/shm, so a folder that is there may be somebody else's.
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise BuildError(f"--shm: {folder} is not a folder that belongs to this user alone; remove it")
    return folder
