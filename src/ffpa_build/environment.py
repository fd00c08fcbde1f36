"""What a build is told: the options of a command line and, below them, the environment.

A PEP 517 front end starts the build with nothing but a folder, so the environment is how `pip wheel` is told what to
compile. It is read here, when a build starts; nothing else of the build looks at it.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ffpa_attn.config import VARIABLES as RUN_TIME_VARIABLES
from ffpa_build.arch_list import archs_of
from ffpa_build.errors import SelectionError
from ffpa_build.flags import BUILD, FLAGS, QUANT_SPLIT_D, SELECTION, group
from ffpa_build.model import ACCUMULATORS, DTYPES, Spec, ToolchainSpec
from ffpa_build.selection import Selection

OTHER_VARIABLES = ("FFPA_CI_ENVIRONMENT",)
"""Variables with the project's prefix that other tools of it read."""
VARIABLES = tuple(flag for flag in FLAGS if flag.variable)
"""The flags that a wheel build reads from its environment."""
READ = tuple(name for flag in FLAGS for name in (flag.variable, flag.fallback) if name)
"""Every name that is looked at."""
_DEBUG_WORDS = {"0": "none", "1": "all"}


@dataclass(frozen=True)
class Settings:
    """What a build does, from all that it is told.

    Attributes:
        selection, toolchain: what is compiled, and by what.
        cache: folder of compiled kernels; None is the user's own.
        jobs: compiles at a time; None leaves it to cores and memory.
        nvcc_threads: threads of one nvcc; None leaves it to nvcc.
        cxx: the host compiler's program and arguments; none is the platform's own.
        notices: sentences for the user about what was left out or has no effect.
    """

    selection: Selection
    toolchain: ToolchainSpec
    cache: Path | None
    jobs: int | None
    nvcc_threads: int | None
    cxx: tuple[str, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class _Given:
    """A value with where it came from, for messages: an option or a variable."""

    source: str
    value: str
    on_command_line: bool

    def error(self, text: str) -> SelectionError:
        return SelectionError(f"{self.source} = {self.value!r}: {text}")


def settings(
    spec: Spec, environment: Mapping[str, str], options: Mapping[str, str | bool | None] | None = None
) -> Settings:
    """Resolves options over variables over the preset.

    `options` maps arguments of `ffpa_build.flags` to what the command line gave; None and False are not given.
    Raises SelectionError with the option or variable, its value and what is allowed.
    """
    notices = list(_unknown(environment))
    given = _given(environment, options or {})
    selection = _selection(spec, given, notices)
    toolchain = _toolchain(spec, given.get("toolchain"))
    threads = _number(given.get("nvcc_threads"))
    if threads is not None and toolchain.kind != "nvcc":
        notices.append(f"{given['nvcc_threads'].source} has no effect: toolchain {toolchain.name} does not run nvcc")
    cache = given.get("cache")
    return Settings(
        selection=selection,
        toolchain=toolchain,
        cache=None if cache is None else Path(cache.value).resolve(),
        jobs=_number(given.get("jobs")),
        nvcc_threads=threads,
        cxx=_command(given.get("cxx")),
        notices=tuple(notices),
    )


def selection(spec: Spec, environment: Mapping[str, str]) -> Selection:
    """The selection of the environment alone."""
    return settings(spec, environment).selection


def as_variables(found: Settings, preset: str | None) -> dict[str, str]:
    """The variables that give a build in another process these settings, whatever else `READ` names there is unset.

    `preset` is the name of the one that the settings were made from, None for the default one.
    """
    chosen = found.selection
    variables = {
        "FFPA_BUILD_PRESET": preset or "default",
        "FFPA_BUILD_ARCH": ",".join(chosen.archs),
        "FFPA_BUILD_EXT": ",".join(chosen.exts) or "none",
        "FFPA_DEV_HEADDIMS": ",".join(map(str, chosen.head_dims)),
        "FFPA_BUILD_STAGES": ",".join(map(str, chosen.stages)),
        "FFPA_BUILD_DTYPES": ",".join(chosen.dtypes),
        "FFPA_BUILD_ACC": ",".join(chosen.acc),
        "FFPA_BUILD_FEATURES": ",".join(chosen.features) or "none",
        "ENABLE_FFPA_QUANT_SPLIT_D": str(int(QUANT_SPLIT_D in chosen.opt_in)),
        "ENABLE_FFPA_BUILD_DEBUG": ",".join(chosen.debug) or "none",
        "FFPA_BUILD_TOOLCHAIN": found.toolchain.name,
    }
    numbers = {"FFPA_BUILD_JOBS": found.jobs, "FFPA_BUILD_NVCC_THREADS": found.nvcc_threads}
    variables.update({name: str(number) for name, number in numbers.items() if number is not None})
    if found.cxx:
        variables["FFPA_BUILD_CXX"] = shlex.join(found.cxx)
    if found.cache is not None:
        variables["FFPA_BUILD_CACHE"] = str(found.cache)
    return variables


def _unknown(environment: Mapping[str, str]) -> list[str]:
    """A notice for every variable that looks like the project's and is none.

    Raises SelectionError where the name says that it is meant for a build: a misspelt restriction would otherwise
    build everything.
    """
    build = [flag.variable for flag in VARIABLES]
    known = {*build, *RUN_TIME_VARIABLES, *OTHER_VARIABLES}
    notices = []
    for name in sorted(environment):
        if name.startswith(("FFPA_", "ENABLE_FFPA_")) and name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            if name.startswith("FFPA_BUILD_"):
                raise SelectionError(f"{name}: no variable of the build; {hint}allowed: {', '.join(build)}")
            notices.append(f"{name} is not known and has no effect; {hint}docs/build-flags.md lists the variables")
    return notices


def _given(environment: Mapping[str, str], options: Mapping[str, str | bool | None]) -> dict[str, _Given]:
    """What is given, by argument; an empty variable is not."""
    given = {}
    for flag in group(SELECTION, BUILD):
        option = options.get(flag.argument)
        if option is not None and option is not False:
            text = "1" if option is True else str(option)
            given[flag.argument] = _Given(flag.options[-1], text, on_command_line=True)
            continue
        for name in (flag.variable, flag.fallback):
            if name and environment.get(name):
                given[flag.argument] = _Given(name, environment[name], on_command_line=False)
                break
    return given


def _selection(spec: Spec, given: dict[str, _Given], notices: list[str]) -> Selection:
    preset = "default"
    if (named := given.get("preset")) is not None:
        if named.value not in spec.presets:
            raise named.error(f"allowed: {', '.join(spec.presets)}")
        preset = named.value
    values: dict[str, Any] = {}
    for flag in group(SELECTION):
        item = given.get(flag.argument)
        if item is None or flag.argument == "preset" or flag.is_switch:
            continue
        value: Any = item.value
        if item.source == flag.fallback and flag.argument == "archs":
            if named is not None:
                notices.append(f"{item.source} is not looked at: {named.source} = {preset!r} names its archs")
                continue
            value, text = archs_of(spec, item.source, item.value)
            notices += text
        elif flag.argument == "debug":
            value = _DEBUG_WORDS.get(item.value, item.value)
        try:
            Selection.make(spec, preset, **{flag.argument: value})
        except SelectionError as error:
            raise SelectionError(f"{item.source}: {error}") from error
        values[flag.argument] = value
    selection = Selection.make(spec, preset, **values)
    selection = _switches(spec, selection, given, notices)
    _check(selection, given)
    return selection


_FIELDS = {"ext": "exts"}  # where the field of a Selection is not called as its argument


def _switches(spec: Spec, selection: Selection, given: dict[str, _Given], notices: list[str]) -> Selection:
    """Applies the variables that are 0 or 1. One that contradicts a list in another variable is an error; a list on
    the command line comes before both."""
    allowed = {
        "ext": spec.exts,
        "dtypes": DTYPES,
        "acc": ACCUMULATORS,
        "features": spec.features,
        "opt_in": spec.opt_ins,
    }
    kernels = _state(given.get("cuda_impl"))
    for flag in group(SELECTION):
        switch = given.get(flag.argument)
        state = _state(switch) if flag.is_switch else None
        if flag.adds is None or switch is None or state is None:
            continue
        argument, wanted = flag.adds
        field = _FIELDS.get(argument, argument)
        if state and argument == "ext" and kernels is False:
            raise switch.error(f"contradicts {given['cuda_impl'].source} = '0', which builds no kernels")
        listed = given.get(argument)
        if listed is not None and listed.on_command_line:
            continue
        present: tuple[str, ...] = getattr(selection, field)
        declared = [name for name in wanted if name in allowed[argument]]
        if listed is not None and any((name in present) != state for name in declared):
            raise switch.error(f"contradicts {listed.source} = {listed.value!r}; set one of the two")
        if state and not declared:
            notices.append(f"{switch.source} = 1 adds nothing: this tree has no kernels of {', '.join(wanted)}")
        names = {*present, *declared} if state else {*present} - {*declared}
        changed: dict[str, Any] = {field: tuple(name for name in allowed[argument] if name in names)}
        selection = replace(selection, **changed)
        if argument in ("dtypes", "acc") and not names:
            raise switch.error(f"leaves no {argument} of the preset; name one with {_option(argument)}")
    return _kernels(selection, kernels, given)


def _kernels(selection: Selection, wanted: bool | None, given: dict[str, _Given]) -> Selection:
    listed = given.get("ext")
    if wanted is None or (listed is not None and listed.on_command_line):
        return selection
    switch = given["cuda_impl"]
    if listed is not None and wanted != bool(selection.exts):
        raise switch.error(f"contradicts {listed.source} = {listed.value!r}; set one of the two")
    return selection if wanted else replace(selection, exts=())


def _check(selection: Selection, given: dict[str, _Given]) -> None:
    """What no list says on its own."""
    acc = given.get("acc") or given.get("f16_acc")
    if acc is not None and "f16" in selection.acc and "fp16" not in selection.dtypes and acc.value != "all":
        raise acc.error("f16 accumulators need fp16 inputs: ENABLE_FFPA_CUDA_INPUT_FP16=1 or --dtype bf16,fp16")


def _state(switch: _Given | None) -> bool | None:
    if switch is None:
        return None
    if switch.value not in ("0", "1"):
        raise switch.error("allowed: 0, 1")
    return switch.value == "1"


def _option(argument: str) -> str:
    return next(flag.options[-1] for flag in FLAGS if flag.argument == argument)


def _toolchain(spec: Spec, named: _Given | None) -> ToolchainSpec:
    if named is None:
        return spec.default_toolchain
    if named.value not in spec.toolchains:
        raise named.error(f"allowed: {', '.join(spec.toolchains)}")
    return spec.toolchains[named.value]


def _number(item: _Given | None) -> int | None:
    if item is None:
        return None
    if not item.value.isdecimal() or int(item.value) < 1:
        raise item.error("allowed: a number >= 1")
    return int(item.value)


def _command(item: _Given | None) -> tuple[str, ...]:
    if item is None:
        return ()
    try:
        words = tuple(shlex.split(item.value))
    except ValueError as error:
        raise item.error(f"is no command: {error}") from error
    if not words:
        raise item.error("allowed: a program, and arguments for it")
    return words
