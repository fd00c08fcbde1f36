"""Wheel builds that are told something through the environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from small_tree import ROOT, Build, members, metadata, run


def test_a_core_without_kernels_is_runtime_and_launcher(build: Build) -> None:
    core = build("ffpa-core", ENABLE_FFPA_CUDA_IMPL="0")
    files = members(core)
    assert "ffpa_attn/_launcher.so" in files
    assert not any(name.startswith("ffpa_pack_core/") for name in files)
    (version,) = (line.partition(": ")[2] for line in metadata(core) if line.startswith("Version: "))
    assert version.endswith("+nokernels")


def test_debug_dispatch_marks_the_manifest_and_leaves_the_cubins_alone(build: Build, extra: Path) -> None:
    plain, marked = members(extra), members(build("ffpa-extra", ENABLE_FFPA_BUILD_DEBUG="fp16,fp8"))
    name = "ffpa_pack_extra/manifest.json"
    assert json.loads(marked[name])["debug"] == ["fp16", "fp8"]
    assert "debug" not in json.loads(plain[name])
    cubins = [file for file in plain if file.endswith(".cubin")]
    assert cubins and all(plain[file] == marked[file] for file in cubins)


@pytest.mark.parametrize("arch", ["sm_89", "sm_120f"])
def test_the_wheels_of_any_arch_include_the_runtime(arch: str) -> None:
    code = "import sys, wheels as w; print(*w.distributions(w.load_spec(w.TREE), {'FFPA_BUILD_ARCH': sys.argv[1]}))"
    built = run(ROOT, sys.executable, "-c", code, arch, cwd=ROOT / "ci").split()
    assert built == ["ffpa", "ffpa-core", *(["ffpa-sm120"] if arch == "sm_120f" else [])]


def test_the_wheel_command_has_an_option_for_every_variable_that_has_one() -> None:
    from ffpa_build.environment import VARIABLES

    text = run(ROOT, sys.executable, "ci/wheels.py", "--help")
    for flag in VARIABLES:
        for option in flag.options:
            assert option in text
