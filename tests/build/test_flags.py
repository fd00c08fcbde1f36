"""Every flag of the table reaches the selection, from an option as from a variable; what is wrong is named."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from build_tree import REPOSITORY
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ffpa_build import flags_page
from ffpa_build.cli import main
from ffpa_build.compiler import compile_cubin, flags_for
from ffpa_build.environment import READ, Settings, as_variables, settings
from ffpa_build.errors import SelectionError
from ffpa_build.flags import BUILD, FLAGS, SELECTION, group
from ffpa_build.model import Spec
from ffpa_build.spec import load_spec
from ffpa_build.toolchain import Toolchain

PROJECT = load_spec(REPOSITORY)
SPECIFICATION = {
    "--arch": {"FFPA_BUILD_ARCH", "TORCH_CUDA_ARCH_LIST"},
    "--headdim": {"FFPA_DEV_HEADDIMS"},
    "--stages": {"FFPA_BUILD_STAGES"},
    "--debug-ext": {"ENABLE_FFPA_BUILD_DEBUG"},
    "--jobs": {"FFPA_BUILD_JOBS", "MAX_JOBS"},
}


def chosen(environment: dict[str, str], spec: Spec = PROJECT, **options: str | bool) -> Settings:
    return settings(spec, environment, options)


def with_families(tree: Path) -> Spec:
    """The small tree with a TMA family, a CuTe one, and a quantised one that has to be opted in to."""
    path = tree / "variants/families.toml"
    row = path.read_text().split("[tiny.copy]")[1]
    text = path.read_text()
    for name, ext, extra in (
        ("boxes", "tma", ""),
        ("atoms", "cute", ""),
        ("small", "fp8", 'opt_in = "quant_split_d"\n'),
    ):
        text += f"\n[tiny.{name}]" + row.replace('ext = "native"', f'ext = "{ext}"') + extra
    path.write_text(text)
    return load_spec(tree)


def test_a_build_without_flags_is_trimmed_as_specified() -> None:
    found = chosen({}).selection
    assert found.archs == tuple(PROJECT.archs)
    assert (found.dtypes, found.acc, found.stages) == (("bf16",), ("f32",), (2, 3))
    assert found.head_dims == (64, 128, 192, 256, 320, 512)
    assert found.features == ("bias", "dropout")
    assert (found.opt_in, found.debug) == ((), ())


@pytest.mark.parametrize(
    ("variable", "argument", "value", "field", "expected"),
    [
        ("FFPA_BUILD_ARCH", "archs", "ada,120", "archs", ("sm_89", "sm_120f")),
        ("FFPA_BUILD_PRESET", "preset", "release", "dtypes", ("bf16", "fp16")),
        ("FFPA_BUILD_EXT", "ext", "none", "exts", ()),
        ("FFPA_DEV_HEADDIMS", "head_dims", "all", "head_dims", (64, 128, 192, 256, 320, 512, 768)),
        ("FFPA_BUILD_STAGES", "stages", "all", "stages", PROJECT.stages),
        ("FFPA_BUILD_DTYPES", "dtypes", "fp16", "dtypes", ("fp16",)),
        ("FFPA_BUILD_FEATURES", "features", "none", "features", ()),
        ("ENABLE_FFPA_BUILD_DEBUG", "debug", "fp8,fp16", "debug", ("fp16", "fp8")),
        ("ENABLE_FFPA_BUILD_DEBUG", "debug", "all", "debug", ("fp16", "fp8", "fp4")),
        ("ENABLE_FFPA_BUILD_DEBUG", "debug", "1", "debug", ("fp16", "fp8", "fp4")),
        ("ENABLE_FFPA_BUILD_DEBUG", "debug", "0", "debug", ()),
    ],
)
def test_an_option_says_the_same_as_its_variable(
    variable: str, argument: str, value: str, field: str, expected: object
) -> None:
    by_variable = chosen({variable: value}).selection
    assert getattr(by_variable, field) == expected
    assert chosen({}, **{argument: value}).selection == by_variable


@pytest.mark.parametrize(
    ("variable", "field", "expected"),
    [
        ("ENABLE_FFPA_CUDA_INPUT_FP16", "dtypes", ("bf16", "fp16")),
        ("ENABLE_FFPA_CUDA_MASK_FP32", "features", ("bias", "bias32", "dropout")),
    ],
)
def test_a_switch_adds_to_the_preset_and_zero_takes_away(variable: str, field: str, expected: tuple[str, ...]) -> None:
    assert getattr(chosen({variable: "1"}).selection, field) == expected
    assert getattr(chosen({variable: ""}).selection, field) == getattr(chosen({}).selection, field)
    release = getattr(chosen({"FFPA_BUILD_PRESET": "release", variable: "0"}).selection, field)
    assert release == getattr(chosen({}).selection, field)


def test_f16_accumulators_need_fp16_inputs() -> None:
    both = {"ENABLE_FFPA_F16_ACC": "1", "ENABLE_FFPA_CUDA_INPUT_FP16": "1"}
    assert chosen(both).selection.acc == ("f32", "f16")
    with pytest.raises(SelectionError, match="ENABLE_FFPA_F16_ACC = '1': .*ENABLE_FFPA_CUDA_INPUT_FP16=1"):
        chosen({"ENABLE_FFPA_F16_ACC": "1"})
    with pytest.raises(SelectionError, match="--acc = 'f16': .*fp16 inputs"):
        chosen({}, acc="f16")


def test_families_are_switched_on_and_off(tree: Path) -> None:
    spec = with_families(tree)
    assert chosen({}, spec).selection.exts == ("native", "tma", "cute", "fp8")
    assert chosen({"ENABLE_FFPA_TMA_EXT": "0"}, spec).selection.exts == ("native", "cute", "fp8")
    assert chosen({"ENABLE_FFPA_CUTE_EXT": "0"}, spec).selection.exts == ("native", "tma")
    assert chosen({"ENABLE_FFPA_CUDA_IMPL": "0"}, spec).selection.exts == ()
    assert chosen({"ENABLE_FFPA_CUDA_IMPL": "0"}, spec, ext="tma").selection.exts == ("tma",)


def test_opted_in_kernels_are_built_when_asked_for_only(tree: Path) -> None:
    spec = with_families(tree)

    def impls(*arguments: str, **environment: str) -> set[str]:
        result = CliRunner().invoke(main, ["plan", "--root", str(tree), "--json", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return {kernel["impl"] for kernel in json.loads(result.stdout)["kernels"]}

    assert spec.opt_ins == ("quant_split_d",)
    assert impls() == {"copy", "boxes", "atoms"}
    assert impls("--quant-split-d") == impls(ENABLE_FFPA_QUANT_SPLIT_D="1") == {"copy", "boxes", "atoms", "small"}
    assert "needs opt_in quant_split_d" in CliRunner().invoke(main, ["plan", "--root", str(tree)]).output


def test_a_switch_without_kernels_behind_it_gets_a_note() -> None:
    notices = chosen({"ENABLE_FFPA_QUANT_SPLIT_D": "1"}).notices
    if PROJECT.opt_ins:
        assert notices == ()
    else:
        assert notices == ("ENABLE_FFPA_QUANT_SPLIT_D = 1 adds nothing: this tree has no kernels of quant_split_d",)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FFPA_BUILD_ARCH": "sm_70"}, r"FFPA_BUILD_ARCH: arch = 'sm_70': allowed: all; sm_80"),
        ({"FFPA_BUILD_EXT": "cutlass"}, r"FFPA_BUILD_EXT: ext = 'cutlass': allowed: native"),
        ({"FFPA_DEV_HEADDIMS": "65"}, r"FFPA_DEV_HEADDIMS: headdim = 65: allowed: default, all or multiples of 8"),
        ({"FFPA_BUILD_STAGES": "9"}, r"FFPA_BUILD_STAGES: stages = 9: allowed: 2, 3"),
        ({"FFPA_BUILD_DTYPES": "fp32"}, r"FFPA_BUILD_DTYPES: dtype = 'fp32': allowed: bf16, fp16, all"),
        ({"FFPA_BUILD_FEATURES": "alibi"}, r"FFPA_BUILD_FEATURES: features = 'alibi': allowed: bias, bias32, dropout"),
        ({"ENABLE_FFPA_BUILD_DEBUG": "int8"}, r"ENABLE_FFPA_BUILD_DEBUG: debug = 'int8': allowed: fp16, fp8, fp4"),
        ({"FFPA_BUILD_PRESET": "x"}, r"FFPA_BUILD_PRESET = 'x': allowed: default, release"),
        ({"FFPA_BUILD_TOOLCHAIN": "gcc"}, r"FFPA_BUILD_TOOLCHAIN = 'gcc': allowed: nvcc-12.9, nvcc-13.0, nvrtc"),
        ({"FFPA_BUILD_JOBS": "0"}, r"FFPA_BUILD_JOBS = '0': allowed: a number >= 1"),
        ({"MAX_JOBS": "many"}, r"MAX_JOBS = 'many': allowed: a number >= 1"),
        ({"NVCC_THREADS": "-1"}, r"NVCC_THREADS = '-1': allowed: a number >= 1"),
        ({"ENABLE_FFPA_CUDA_INPUT_FP16": "yes"}, r"ENABLE_FFPA_CUDA_INPUT_FP16 = 'yes': allowed: 0, 1"),
        ({"ENABLE_FFPA_CUDA_IMPL": "on"}, r"ENABLE_FFPA_CUDA_IMPL = 'on': allowed: 0, 1"),
        (
            {"FFPA_BUILD_DTYPES": "bf16", "ENABLE_FFPA_CUDA_INPUT_FP16": "1"},
            r"ENABLE_FFPA_CUDA_INPUT_FP16 = '1': contradicts FFPA_BUILD_DTYPES = 'bf16'",
        ),
        (
            {"FFPA_BUILD_DTYPES": "all", "ENABLE_FFPA_CUDA_INPUT_FP16": "0"},
            r"ENABLE_FFPA_CUDA_INPUT_FP16 = '0': contradicts FFPA_BUILD_DTYPES = 'all'",
        ),
        (
            {"FFPA_BUILD_EXT": "none", "ENABLE_FFPA_CUDA_IMPL": "1"},
            r"ENABLE_FFPA_CUDA_IMPL = '1': contradicts FFPA_BUILD_EXT = 'none'",
        ),
        (
            {"ENABLE_FFPA_TMA_EXT": "1", "ENABLE_FFPA_CUDA_IMPL": "0"},
            r"ENABLE_FFPA_TMA_EXT = '1': contradicts ENABLE_FFPA_CUDA_IMPL = '0'",
        ),
        ({"FFPA_BUILD_STAGE": "3"}, r"FFPA_BUILD_STAGE: no variable of the build; did you mean FFPA_BUILD_STAGES\?"),
        ({"TORCH_CUDA_ARCH_LIST": "7.5;8.0"}, r"TORCH_CUDA_ARCH_LIST = '7.5;8.0': no kernels for '7.5'; allowed: 8.0"),
        ({"TORCH_CUDA_ARCH_LIST": "Turing"}, r"TORCH_CUDA_ARCH_LIST = 'Turing': no kernels for 'Turing'"),
        ({"TORCH_CUDA_ARCH_LIST": "sm_80"}, r"TORCH_CUDA_ARCH_LIST = 'sm_80': no kernels for 'sm_80'"),
    ],
)
def test_what_is_wrong_is_named_with_its_variable(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        chosen(environment)


def test_an_option_comes_before_every_variable() -> None:
    environment = {"FFPA_BUILD_DTYPES": "bf16", "FFPA_BUILD_ARCH": "80", "FFPA_BUILD_JOBS": "3", "MAX_JOBS": "5"}
    assert chosen(environment).jobs == 3
    found = chosen(environment, dtypes="fp16", archs="90", jobs="7")
    assert (found.selection.dtypes, found.selection.archs, found.jobs) == (("fp16",), ("sm_90a",), 7)
    switched = chosen({"ENABLE_FFPA_CUDA_INPUT_FP16": "1"}, dtypes="bf16").selection
    assert switched.dtypes == ("bf16",)


def test_max_jobs_stands_in() -> None:
    assert chosen({"MAX_JOBS": "5"}).jobs == 5
    assert chosen({}).jobs is None


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("8.0;8.9;9.0+PTX", ("sm_80", "sm_89", "sm_90a")),
        ("8.6", ("sm_80",)),
        ("9.0a 10.3,12.1+PTX", ("sm_90a", "sm_100f", "sm_120f")),
        ("Hopper;Blackwell", ("sm_90a", "sm_100f", "sm_120f")),
        ("8.9;8.9", ("sm_89",)),
    ],
)
def test_the_arch_list_of_pytorch_is_honoured(text: str, archs: tuple[str, ...]) -> None:
    found = chosen({"TORCH_CUDA_ARCH_LIST": text})
    assert found.selection.archs == archs
    assert any("+PTX is left out" in notice for notice in found.notices) == ("+PTX" in text)


def test_the_arch_list_of_pytorch_comes_last() -> None:
    environment = {"TORCH_CUDA_ARCH_LIST": "7.5", "FFPA_BUILD_ARCH": "89"}
    assert chosen(environment).selection.archs == ("sm_89",)
    found = chosen({"TORCH_CUDA_ARCH_LIST": "8.0"}, preset="dev")
    assert found.selection.archs == PROJECT.presets["dev"].archs
    assert found.notices == ("TORCH_CUDA_ARCH_LIST is not looked at: --preset = 'dev' names its archs",)


@pytest.mark.parametrize("name", ["ENABLE_FFPA_CUDA_INPUT_FP61", "FFPA_DEV_HEADDIM", "ENABLE_FFPA_NOTHING"])
def test_an_unknown_variable_gets_a_note(name: str) -> None:
    (notice,) = chosen({name: "1"}).notices
    assert notice.startswith(f"{name} is not known")


def test_variables_of_the_runtime_are_known() -> None:
    assert chosen({"FFPA_STRICT": "1", "FFPA_CUDA_ALLOW_SMALL_D": "0", "FFPA_FP16_FORCE_KERNEL": "x"}).notices == ()


def test_nvcc_threads_have_no_effect_on_nvrtc_and_this_is_said() -> None:
    (notice,) = chosen({}, nvcc_threads="4").notices
    assert notice.startswith("--nvcc-threads has no effect: toolchain nvrtc")
    found = chosen({}, nvcc_threads="4", toolchain="nvcc-13.0")
    assert (found.notices, found.nvcc_threads) == ((), 4)


def test_a_host_compiler_is_a_program_with_arguments() -> None:
    assert chosen({}).cxx == ()
    assert chosen({"CXX": "clang++ -m64"}).cxx == ("clang++", "-m64")
    assert chosen({"CXX": "clang++", "FFPA_BUILD_CXX": "'/a b/g++'"}).cxx == ("/a b/g++",)
    for value in ("'g++", " "):
        with pytest.raises(SelectionError, match="FFPA_BUILD_CXX = "):
            chosen({"FFPA_BUILD_CXX": value})


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "archs": st.sampled_from(["89", "90,120", "all"]),
            "dtypes": st.sampled_from(["bf16", "fp16", "all"]),
            "features": st.sampled_from(["none", "all", "bias", "bias32,dropout"]),
            "stages": st.sampled_from(["2", "all"]),
            "head_dims": st.sampled_from(["default", "all", "8,1024"]),
            "ext": st.sampled_from(["all", "none", "native"]),
            "debug": st.sampled_from(["none", "fp16", "all"]),
            "preset": st.sampled_from(sorted(PROJECT.presets)),
            "jobs": st.just("2"),
        },
    ),
    environment=st.fixed_dictionaries(
        {},
        optional={
            "ENABLE_FFPA_CUDA_INPUT_FP16": st.sampled_from("01"),
            "ENABLE_FFPA_CUDA_MASK_FP32": st.sampled_from("01"),
            "TORCH_CUDA_ARCH_LIST": st.just("8.0"),
            "CXX": st.just("ccache '/a b/g++' -m64"),
        },
    ),
)
def test_settings_survive_the_way_to_another_process(values: dict[str, str], environment: dict[str, str]) -> None:
    try:
        found = chosen(environment, **values)
    except SelectionError:
        return  # an emulating preset with its own arch as the target, or a preset that is left without a dtype
    again = chosen(as_variables(found, values.get("preset")))
    assert (again.selection, again.toolchain, again.jobs) == (found.selection, found.toolchain, found.jobs)
    assert again.cxx == found.cxx


def test_the_table_names_everything_once() -> None:
    options = [option for flag in FLAGS for option in flag.options]
    assert len(set(options)) == len(options)
    assert len(set(READ)) == len(READ)
    for flag in FLAGS:
        assert flag.help and flag.help[-1] != "." and flag.default
        assert flag.options or flag.variable
    for option, variables in SPECIFICATION.items():
        (flag,) = (flag for flag in FLAGS if option in flag.options)
        assert {flag.variable, flag.fallback} - {""} == variables


@pytest.mark.parametrize("command", ["plan", "build", "install"])
def test_commands_have_the_options_of_the_table(command: str) -> None:
    text = CliRunner().invoke(main, [command, "--help"]).output
    groups = {"plan": (SELECTION,), "build": (SELECTION, BUILD), "install": tuple({flag.group for flag in FLAGS})}
    for flag in group(*groups[command]):
        for option in flag.options:
            assert re.search(rf"(^|[ ,]){option}\b", text, re.MULTILINE), option


def test_notices_and_errors_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READ:
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(main, ["plan", "--root", str(REPOSITORY)], env={"FFPA_DEV_HEADDIM": "8"})
    assert result.exit_code == 0
    assert "note: FFPA_DEV_HEADDIM is not known" in result.stderr
    result = CliRunner().invoke(main, ["plan", "--root", str(REPOSITORY), "--arch", "sm_70"])
    assert result.exit_code == 2
    assert "error: --arch: arch = 'sm_70'" in result.stderr


def test_the_page_is_made_from_the_table() -> None:
    text = (REPOSITORY / flags_page.PAGE).read_text(encoding="utf-8")
    assert text == flags_page.render(PROJECT), "run: python -m ffpa_build.flags_page write"
    for flag in FLAGS:
        for name in (*flag.options, flag.variable, flag.fallback):
            assert name in text


def test_no_variable_is_read_outside_the_environment_module() -> None:
    """A wheel build and a command would otherwise not mean the same by it."""
    files = subprocess.run(
        ["grep", "-rlE", r"environ\b|getenv", "--include=*.py", str(REPOSITORY / "src/ffpa_build")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    # cli and wheel hand the environment over; install and schedule pass it on to a process.
    assert {Path(name).name for name in files} <= {"cli.py", "wheel.py", "install.py", "schedule.py", "environment.py"}


@pytest.mark.parametrize("threads", [0, 4])
def test_nvcc_threads_reach_nvcc_and_no_key(tmp_path: Path, threads: int) -> None:
    program = tmp_path / "nvcc"
    program.write_text('#!/bin/sh\necho "$@"\ntouch out.cubin\n')
    program.chmod(0o755)
    toolchain = Toolchain("nvcc-0", "nvcc", "0", "nvcc 0", "", "", str(program), threads)
    log = compile_cubin("", {}, "sm_89", toolchain, "kernel").log
    assert ("--threads 4" in log) == (threads == 4)
    assert "--threads" not in flags_for("nvcc")
