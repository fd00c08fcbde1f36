"""Real compiles of trivial kernels: what is compiled again and when, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from build_tree import REPOSITORY

from ffpa_attn.manifest import Manifest
from ffpa_build.api import BuildFailed, Selection, build_packs, build_report, expand, load_spec
from ffpa_build.build import BuildReport, unit_of
from ffpa_build.cache import Cache
from ffpa_build.errors import ToolchainError
from ffpa_build.facts import violations
from ffpa_build.includes import Sources
from ffpa_build.model import Rule
from ffpa_build.toolchain import locate, resolve

COPY = "csrc/kernels/tiny/copy.cuh"
SPILLING = """
    float value[100];
#pragma unroll
    for (int i = 0; i < 100; ++i) value[i] = p.out[i * p.count];
#pragma unroll
    for (int i = 0; i < 100; ++i) p.out[i * p.count + 1] = value[i] * value[99 - i];
"""


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def build(tree: Path, cache: Path, **options: str) -> BuildReport:
    spec = load_spec(tree)
    return build_report(Selection.make(spec, **options), spec=spec, cache_dir=cache, jobs=2, quiet=True)  # type: ignore[arg-type]


def command(tree: Path, cache: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ffpa_build", *arguments, "--root", str(tree), "--cache-dir", str(cache)]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)


def test_packs_hold_what_their_manifest_says(tree: Path, cache: Path, tmp_path: Path) -> None:
    spec = load_spec(tree)
    packs = build_packs(Selection.make(spec), tmp_path / "out", spec=spec, cache_dir=cache, quiet=True)
    assert sorted(packs) == ["core", "extra"]
    core = packs["core"]
    assert core.path == tmp_path / "out" / "ffpa_pack_core"
    assert (core.path / "__init__.py").read_bytes() == b""
    manifest = Manifest.from_json((core.path / "manifest.json").read_bytes())
    assert manifest == core.manifest
    (kernel,) = manifest.kernels
    assert kernel.id == "tiny.copy-sm_89-bf16-d64-s2"
    assert (kernel.threads, kernel.smem_bytes, kernel.tile_m, kernel.tile_n) == (128, 2048, 64, 32)
    assert kernel.param_bytes == 16
    assert 0 < kernel.registers < 64
    assert kernel.spill_bytes == 0
    assert (core.path / kernel.file).stat().st_size == kernel.size
    assert core.files == ("__init__.py", "cubins/tiny.copy-sm_89-bf16-d64-s2.cubin", "manifest.json")


def test_a_second_build_elsewhere_gives_the_same_bytes(tree: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    other_tree = tmp_path / "deeper" / "copy"
    subprocess.run(["cp", "-r", str(tree), str(other_tree)], check=True)
    other_cache = tmp_path / "deeper" / "cache"
    other_cache.mkdir()
    (other_cache / "toolchains").symlink_to(cache / "toolchains")
    contents = []
    for root, folder in ((tree, cache), (other_tree, other_cache)):
        spec = load_spec(root)
        packs = build_packs(Selection.make(spec), root / "out", spec=spec, cache_dir=folder, quiet=True)
        contents.append({(n, f): (p.path / f).read_bytes() for n, p in packs.items() for f in p.files})
    assert contents[0] == contents[1]
    assert not any(str(tmp_path).encode() in data for data in contents[0].values())


def test_only_what_changed_is_compiled_again(tree: Path, cache: Path) -> None:
    other = tree / "csrc/kernels/tiny/other.cuh"
    other.write_text(
        (tree / COPY)
        .read_text()
        .replace('#include "kernels/tiny/scale.cuh"\n', "")
        .replace("scale(V::kHeadDim) + ", "")
    )
    families = tree / "variants/families.toml"
    row = families.read_text().split("[tiny.copy]")[1]
    families.write_text(families.read_text() + "\n[tiny.other]" + row.replace("copy.cuh", "other.cuh"))

    assert build(tree, cache).compiled == 4
    assert build(tree, cache).compiled == 0
    edit(tree, "csrc/kernels/tiny/scale.cuh", "2.0f", "3.0f")  # reached by copy, through an include, and not by other
    report = build(tree, cache)
    assert report.compiled == 2
    assert len(report.built) == 4
    assert build(tree, cache, head_dims="64,72").compiled == 4
    edit(tree, "csrc/kernels/tiny/scale.cuh", "3.0f", "2.0f")
    assert build(tree, cache).compiled == 0


def test_a_compile_error_leaves_the_others_alone_and_can_be_repeated(tree: Path, cache: Path) -> None:
    edit(tree, COPY, "if (threadIdx.x", 'static_assert(V::kHeadDim != 72, "seventy-two"); if (threadIdx.x')
    out = tree / "out"
    result = run(command(tree, cache, "build", "--headdim", "64,72", "--arch", "89", "-q", "--out", str(out)))
    assert result.returncode == 1
    assert "1 kernels built" in result.stdout
    assert "seventy-two" in result.stderr
    assert result.stderr.rstrip().endswith("tiny.copy-sm_89-bf16-d72-s2")
    assert not (out / "ffpa_pack_core").exists()

    (line,) = [line for line in result.stderr.splitlines() if line.startswith("to repeat: ")]
    python_path, *repeat = shlex.split(line.removeprefix("to repeat: "))
    again = subprocess.run(
        repeat, env={"PYTHONPATH": python_path.removeprefix("PYTHONPATH=")}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "seventy-two" in again.stderr

    report = build(tree, cache, head_dims="64,72", archs="89")
    assert report.compiled == 1  # the good one came from the cache
    assert [failure.variant.head_dim for failure in report.failures] == [72]


def test_build_packs_raises_with_every_failure(tree: Path, cache: Path, tmp_path: Path) -> None:
    edit(tree, COPY, '#include "kernels/tiny/scale.cuh"', '#include "kernels/tiny/gone.cuh"')
    spec = load_spec(tree)
    with pytest.raises(BuildFailed, match=r'(?s)sm_89.*copy.cuh: #include "kernels/tiny/gone.cuh".*sm_90a'):
        build_packs(Selection.make(spec), tmp_path / "out", spec=spec, cache_dir=cache, quiet=True)


def test_a_spill_fails_unless_the_table_allows_it(tree: Path, cache: Path) -> None:
    edit(tree, COPY, "    if (threadIdx.x < p.count)", SPILLING + "    if (threadIdx.x < p.count)")
    edit(tree, COPY, "kMinBlocks = 1", "kMinBlocks = 12")  # 40 registers a thread
    (failure,) = build(tree, cache, archs="89").failures
    assert "spills" in failure.reason
    assert "allowed: 0 (variants/families.toml, [tiny.copy] spills)" in failure.reason
    spilled = int(failure.reason.split("spills ")[1].split()[0])
    assert spilled > 0

    allow = 'spills = [{{ bytes = {}, head_dim = [64], reason = "a test" }}]'
    edit(tree, "variants/families.toml", "spills = []", allow.format(spilled - 1))
    assert len(build(tree, cache, archs="89").failures) == 1
    edit(tree, "variants/families.toml", f"bytes = {spilled - 1}", f"bytes = {spilled}")
    report = build(tree, cache, archs="89")
    assert report.failures == ()
    assert report.compiled == 0  # a limit is no part of the key
    assert report.built[0].entry.facts.spill_bytes == spilled


def test_shared_memory_over_the_limit_of_the_designed_arch_fails(tree: Path, cache: Path) -> None:
    edit(tree, COPY, "V::kStages * 1024", "V::kSmemBlock + 16")
    (failure,) = build(tree, cache, preset="emulated").failures
    assert f"needs {99 * 1024 + 16} bytes of shared memory a block; sm_89 has {99 * 1024}" in failure.reason


def test_an_emulated_kernel_is_a_cubin_of_its_target(tree: Path, cache: Path, tmp_path: Path) -> None:
    spec = load_spec(tree)
    packs = build_packs(Selection.make(spec, "emulated"), tmp_path, spec=spec, cache_dir=cache, quiet=True)
    (kernel,) = packs["core"].manifest.kernels
    assert kernel.id == "tiny.copy-sm_89-bf16-d64-s2-for_sm_90a"
    assert (kernel.arch, kernel.capabilities) == ("sm_89", ("9.0",))
    assert packs["core"].version == "0.1.0+emulated.sm89.for.sm90a"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("entry##_meta = {", "entry##_fact = {", "lacks the symbol"),
        ("kMetaSchema,", "kMetaSchema + 1,", "has schema 2"),
        ("sizeof(typename entry##_kernel::Params)", "8", "takes 16 bytes of parameters"),
        ("kThreads,", "kThreads + 1,", "129 threads"),
        ("kPersistent,", "kPersistent + 2,", "has persistent 2, but must have 0 or 1"),
        ("#define FFPA_KERNEL", 'extern "C" __global__ void second() {}\n#define FFPA_KERNEL', "must be exactly"),
    ],
)
def test_facts_that_contradict_the_cubin_fail(tree: Path, cache: Path, old: str, new: str, reason: str) -> None:
    path = tree / "csrc/core/kernel_entry.cuh"
    head, tail = path.read_text().split("#define FFPA_KERNEL")
    tail = "#define FFPA_KERNEL" + tail
    start = tail.index("_meta = {") - 20
    if old in tail[start:]:
        tail = tail[:start] + tail[start:].replace(old, new, 1)
    else:
        tail = tail.replace(old, new, 1)
    path.write_text(head + tail)
    (failure,) = build(tree, cache, archs="89").failures
    assert reason in failure.reason


def test_spills_are_allowed_to_the_toolchains_of_their_rule_only(tree: Path, cache: Path) -> None:
    (built,) = build(tree, cache, archs="89").built
    facts = replace(built.entry.facts, spill_bytes=8)
    for toolchains, refused in (((), []), (("nvrtc-13.0",), ["nvrtc-12.9"]), (("nvrtc-12.9",), ["nvrtc-13.0"])):
        rule = Rule("as they are", bytes=8, toolchains=toolchains)
        variant = replace(built.variant, impl=replace(built.variant.impl, spills=(rule,)))
        assert [name for name in ("nvrtc-12.9", "nvrtc-13.0") if violations(variant, facts, name)] == refused
        assert violations(variant, replace(facts, spill_bytes=12), "nvrtc-13.0")


def test_a_cubin_for_another_arch_is_refused(tree: Path, cache: Path) -> None:
    (built,) = build(tree, cache, archs="89").built
    moved = replace(built.variant, arch=load_spec(tree).archs["sm_90a"], target=load_spec(tree).archs["sm_90a"])
    reasons = violations(moved, built.entry.facts, "nvrtc-12.9")
    assert any("the cubin is for sm_89, but must be for sm_90a" in reason for reason in reasons)


@pytest.mark.parametrize("damage", ["cubin", "truncated cubin", "facts", "truncated record", "no cubin", "no record"])
def test_a_damaged_cache_entry_is_compiled_again(tree: Path, cache: Path, damage: str) -> None:
    (built,) = build(tree, cache, archs="89").built
    store = Cache(cache)
    cubin, record = store.cubin_path(built.unit.key), store.record_path(built.unit.key)
    if damage == "cubin":
        data = bytearray(cubin.read_bytes())
        data[100] ^= 1
        cubin.write_bytes(data)
    elif damage == "truncated cubin":
        cubin.write_bytes(cubin.read_bytes()[:-1])
    elif damage == "facts":
        record.write_text(record.read_text().replace('"threads": 128', '"threads": 256'))
    elif damage == "truncated record":
        record.write_bytes(record.read_bytes()[:50])
    else:
        (cubin if damage == "no cubin" else record).unlink()
    report = build(tree, cache, archs="89")
    assert report.compiled == 1
    assert report.built[0].entry.cubin == built.entry.cubin


@pytest.mark.skipif(os.name == "nt", reason="uses POSIX signals")
def test_killed_at_any_moment_a_build_finishes_right_the_next_time(tree: Path, cache: Path, tmp_path: Path) -> None:
    """SIGKILL at three moments of a build of eight kernels: of all its processes, and of the first one only."""
    arguments = command(tree, cache, "build", "--arch", "89", "--headdim", ",".join(str(8 * n) for n in range(1, 5)))
    arguments += ["--stages", "all", "-q", "-j", "2", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = []
    for delay, kill in ((0.3, os.killpg), (0.7, os.kill), (1.1, os.killpg)):
        process = subprocess.Popen(arguments, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        done.append(len(list((cache / "cubins").rglob("*.json"))))
    assert done[0] < 8  # the first kill came before the end
    result = run([*arguments, "--json"])
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["failures"] == []
    manifest = Manifest.from_json((tmp_path / "out/ffpa_pack_core/manifest.json").read_bytes())
    assert len(manifest.kernels) == 8

    clean_cache = tmp_path / "clean"
    clean_cache.mkdir()
    (clean_cache / "toolchains").symlink_to(cache / "toolchains")
    reference = build(tree, clean_cache, archs="89", head_dims="8,16,24,32", stages="all")
    assert {k.id: k.sha256 for k in manifest.kernels} == {b.variant.id: b.entry.facts.sha256 for b in reference.built}


def test_sources_changed_during_a_build_do_not_poison_the_cache(tree: Path, cache: Path) -> None:
    from ffpa_build.compile_one import Job
    from ffpa_build.compile_one import run as run_job
    from ffpa_build.errors import BuildError

    spec = load_spec(tree)
    toolchain = resolve(spec.default_toolchain, cache)
    variant = expand(spec, Selection.make(spec, archs="89")).variants[0]
    unit = unit_of(variant, Sources(spec.csrc), toolchain)
    edit(tree, COPY, "kTileM = 64", "kTileM = 32")
    job = Job(unit.key, variant.id, variant.entry, unit.source, "sm_89", str(spec.csrc), str(cache), toolchain)
    with pytest.raises(BuildError, match="the sources changed"):
        run_job(job)
    assert Cache(cache).load(unit.key) is None


def test_a_compiler_process_that_dies_is_reported(tree: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ffpa_build import schedule

    monkeypatch.setattr(schedule, "compile_command", lambda job: [sys.executable, "-c", "import os; os.abort()"])
    (failure,) = build(tree, cache, archs="89").failures
    assert "without a result" in failure.reason


def test_a_toolchain_too_old_for_an_arch_is_refused(tree: Path, cache: Path) -> None:
    edit(tree, "variants/archs.toml", 'min_cuda = "12.0"', 'min_cuda = "14.0"')
    with pytest.raises(ToolchainError, match=r"nvrtc-12.9 .* cannot compile sm_90a, which needs CUDA >= 14.0"):
        build(tree, cache)


def test_an_unknown_toolchain_is_named(tree: Path, cache: Path) -> None:
    result = run(command(tree, cache, "build", "--toolchain", "nvrtc-11"))
    assert result.returncode == 2
    assert "toolchain = 'nvrtc-11': allowed: nvcc-12.9, nvcc-13.0, nvrtc-12.9, nvrtc-13.0" in result.stderr


def test_the_toolchain_is_part_of_the_key(tree: Path, cache: Path) -> None:
    spec = load_spec(tree)
    variant = expand(spec, Selection.make(spec)).variants[0]
    sources = Sources(spec.csrc)
    keys = {unit_of(variant, sources, locate(declared, cache)).key for declared in spec.toolchains.values()}
    assert len(keys) == len(spec.toolchains)


def test_a_relative_cache_folder_works(tree: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cache.parent)
    assert build(tree, Path(cache.name), archs="89").failures == ()


def test_every_arch_of_the_project_compiles_to_what_it_names(tree: Path, cache: Path) -> None:
    shutil.copy(REPOSITORY / "variants/archs.toml", tree / "variants/archs.toml")
    names = list(load_spec(REPOSITORY).archs)
    edit(tree, "variants/families.toml", 'archs = ["sm_89", "sm_90a"]', f"archs = {json.dumps(names)}")
    edit(tree, "variants/packs.toml", 'archs = ["sm_89"]', f"archs = {json.dumps([n for n in names if n != 'sm_90a'])}")
    report = build(tree, cache, archs="all")
    assert report.failures == ()
    assert [built.entry.facts.arch for built in report.built] == names
