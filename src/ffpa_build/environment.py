"""The environment variables that say what a wheel build compiles.

A PEP 517 front end starts the build with nothing but a folder, so the environment is how `pip wheel` is told what to
compile. It is read here, when a build starts; nothing else of the build looks at it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ffpa_build.errors import SelectionError
from ffpa_build.model import Spec, ToolchainSpec
from ffpa_build.selection import Selection


@dataclass(frozen=True)
class Variable:
    """One variable: `argument` is what it sets, `options` are the same choice on a command line."""

    name: str
    argument: str
    options: tuple[str, ...]
    help: str


VARIABLES = (
    Variable("FFPA_BUILD_PRESET", "preset", ("--preset",), "a named selection of variants/presets.toml"),
    Variable("FFPA_BUILD_ARCH", "archs", ("--arch",), "archs or their aliases, or all"),
    Variable("FFPA_BUILD_EXT", "ext", ("--ext",), "extension families, or all"),
    Variable("FFPA_DEV_HEADDIMS", "head_dims", ("--headdim",), "head dims, default or all"),
    Variable("FFPA_BUILD_STAGES", "stages", ("--stages",), "pipeline stages, or all"),
    Variable("FFPA_BUILD_DTYPES", "dtypes", ("--dtype",), "input dtypes, or all"),
    Variable("FFPA_BUILD_ACC", "acc", ("--acc",), "accumulators, or all"),
    Variable("FFPA_BUILD_FEATURES", "features", ("--features",), "optional kernel features, all or none"),
    Variable("FFPA_BUILD_TOOLCHAIN", "toolchain", ("--toolchain",), "the compiler, a file of variants/toolchains"),
    Variable("FFPA_BUILD_CACHE", "cache", ("--cache",), "folder of the compiled kernels to reuse"),
    Variable("FFPA_BUILD_JOBS", "jobs", ("-j", "--jobs"), "compiles at a time"),
)

SWITCHES = {
    "ENABLE_FFPA_CUDA_INPUT_FP16": ("dtypes", "bf16,fp16"),
    "ENABLE_FFPA_F16_ACC": ("acc", "f32,f16"),
}
"""Variables that are 1 or 0, and what 1 selects unless the list is given by a variable of its own."""


def read(environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment sets, by argument.

    Raises SelectionError for a variable that looks like one of these and is none: a misspelt restriction would
    otherwise build everything.
    """
    known = {variable.name: variable.argument for variable in VARIABLES}
    for name in environment:
        if name.startswith("FFPA_BUILD_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise SelectionError(f"{name}: no variable of the build; {hint}allowed: {', '.join(known)}")
    values = {argument: environment[name] for name, argument in known.items() if environment.get(name)}
    for name, (argument, value) in SWITCHES.items():
        state = environment.get(name, "") or "0"
        if state not in ("0", "1"):
            raise SelectionError(f"{name} = {state!r}: allowed: 0, 1")
        if state == "1":
            values.setdefault(argument, value)
    return values


def selection(spec: Spec, environment: Mapping[str, str]) -> Selection:
    values = read(environment)
    overrides = {argument: value for argument, value in values.items() if argument in _SELECTION_ARGUMENTS}
    return Selection.make(spec, values.get("preset", "default"), **overrides)


def toolchain(spec: Spec, environment: Mapping[str, str]) -> ToolchainSpec:
    name = read(environment).get("toolchain")
    if name is None:
        return spec.default_toolchain
    if name not in spec.toolchains:
        raise SelectionError(f"FFPA_BUILD_TOOLCHAIN = {name!r}: allowed: {', '.join(spec.toolchains)}")
    return spec.toolchains[name]


def cache(environment: Mapping[str, str]) -> Path | None:
    """The cache folder; None is the user's own."""
    value = read(environment).get("cache")
    return None if value is None else Path(value).resolve()


def jobs(environment: Mapping[str, str]) -> int | None:
    """Compiles at a time; None leaves it to the machine's cores and memory."""
    value = read(environment).get("jobs")
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise SelectionError(f"FFPA_BUILD_JOBS = {value!r}: allowed: a number >= 1")
    return int(value)


_SELECTION_ARGUMENTS = {variable.argument for variable in VARIABLES} - {"preset", "toolchain", "cache", "jobs"}
