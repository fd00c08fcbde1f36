"""Wheels that must not be published: each is made by changing one thing of a good one."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ffpa_attn.manifest import Manifest
from ffpa_build import sass
from ffpa_build.errors import FactsError
from ffpa_build.inspect_wheel import LAUNCHER, UnreadableWheel, Wheel, inspect, launcher_differences
from ffpa_build.spec import load_spec
from small_tree import ROOT, Build, members, rewrite

MANIFEST = "ffpa_pack_extra/manifest.json"
CUBIN = "ffpa_pack_extra/cubins/extra.tiny-sm_90a-bf16-d64-s3.cubin"


@pytest.fixture(scope="module")
def check_wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_wheels", ROOT / "ci" / "check_wheels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def problems(small_tree: Path, extra: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """problems(name=bytes or None, ...) -> what is said of the further pack's wheel with these members changed."""

    def problems(changes: dict[str, bytes | None], record: bool = True) -> list[str]:
        path = tmp_path / extra.name
        rewrite(extra, path, changes, record)
        return inspect(Wheel.read(path), load_spec(small_tree))

    return problems


def manifest_with(wheel: Path, change: Callable[[dict[str, Any]], Any]) -> bytes:
    data = json.loads(members(wheel)[MANIFEST])
    change(data)
    return json.dumps(data).encode()


def test_good_wheels_have_no_problems(core: Path, extra: Path, build: Build, small_tree: Path) -> None:
    for wheel in (core, extra, build("ffpa")):
        assert inspect(Wheel.read(wheel), load_spec(small_tree)) == []


def test_a_tampered_cubin_is_found(problems: Callable[..., list[str]], extra: Path) -> None:
    cubin = bytearray(members(extra)[CUBIN])
    cubin[-1] ^= 1
    assert f"{CUBIN}: its sha256 is not the manifest's" in problems({CUBIN: bytes(cubin)})
    assert f"{CUBIN}: differs from RECORD" in problems({CUBIN: bytes(cubin)}, record=False)
    assert any("is not the manifest's" not in line for line in problems({CUBIN: b"not ELF"}))


def test_a_manifest_from_another_version_is_found(problems: Callable[..., list[str]], extra: Path) -> None:
    other = manifest_with(extra, lambda data: data.update(version="0.0.9"))
    version = extra.name.split("-")[1]
    assert problems({MANIFEST: other}) == [f"{MANIFEST}: is of version '0.0.9', but the wheel of '{version}'"]


def test_a_manifest_of_another_pack_is_found(problems: Callable[..., list[str]], extra: Path, core: Path) -> None:
    found = problems({MANIFEST: members(core)["ffpa_pack_core/manifest.json"]})
    assert f"{MANIFEST}: is of pack 'core', but the wheel of 'extra'" in found
    assert f"{CUBIN}: not in the manifest" in found


def test_a_cubin_of_the_wrong_arch_is_found(problems: Callable[..., list[str]], extra: Path, build: Build) -> None:
    ampere = build("ffpa-core", FFPA_BUILD_ARCH="sm_80")
    (cubin,) = (data for name, data in members(ampere).items() if name.endswith(".cubin"))
    # The kernel's name is inside the cubin, so this one is made to bear the other's; both have the same length.
    cubin = cubin.replace(b"native_tiny_sm_80_bf16", b"extra_tiny_sm_90a_bf16")

    def fits(data: dict[str, Any]) -> None:
        data["kernels"][0].update(sha256=hashlib.sha256(cubin).hexdigest(), size=len(cubin))

    found = problems({CUBIN: cubin, MANIFEST: manifest_with(extra, fits)})
    assert f"{CUBIN}: the cubin is for sm_80, but must be for sm_90a" in found


def test_a_missing_or_a_stray_file_is_found(problems: Callable[..., list[str]], extra: Path) -> None:
    assert problems({CUBIN: None}) == [f"{CUBIN}: missing"]
    assert f"{CUBIN}: RECORD has it, the wheel does not" in problems({CUBIN: None}, record=False)
    assert problems({MANIFEST: None}) == ["manifest.json is missing; 1 cubins"]
    stray = "ffpa_pack_extra/cubins/stray.cubin"
    assert problems({stray: b"x"}) == [f"{stray}: not in the manifest"]
    assert problems({stray: b"x"}, record=False)[0] == f"{stray}: not in RECORD"


def test_facts_and_tables_that_the_manifest_contradicts_are_found(
    problems: Callable[..., list[str]], extra: Path
) -> None:
    for change, message in (
        ({"smem_bytes": 2048}, "smem_bytes is 1024 in the cubin, 2048 in the manifest"),
        ({"capabilities": ["8.0"]}, "capabilities is ('8.0',), by the tables ('9.0',)"),
        ({"rank": 0}, "rank is 0, by the tables 2"),
        ({"order": 1}, "order is 1, by the tables 0"),
    ):
        changed = manifest_with(extra, lambda data, change=change: data["kernels"][0].update(change))
        assert problems({MANIFEST: changed}) == [f"{CUBIN}: {message}"]


def test_an_impossible_variant_is_found(problems: Callable[..., list[str]], extra: Path) -> None:
    def impossible(data: dict[str, Any]) -> None:
        name = "extra.tiny-sm_90a-bf16-d60-s3"  # the table wants multiples of 8
        entry = name.replace(".", "_").replace("-", "_")
        data["kernels"][0].update(id=name, entry=entry, file=f"cubins/{name}.cubin", head_dim=60)

    renamed = CUBIN.replace("d64", "d60")
    found = problems({CUBIN: None, renamed: members(extra)[CUBIN], MANIFEST: manifest_with(extra, impossible)})
    assert any(line.startswith(f"{renamed}: ") and "60" in line for line in found), found


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "a-1-py3-none-any.whl"
    broken.write_bytes(b"PK")
    with pytest.raises(UnreadableWheel, match="a-1-py3-none-any.whl"):
        Wheel.read(broken)


def test_a_launcher_with_other_libraries_or_symbols_is_found(core: Path, tmp_path: Path) -> None:
    assert launcher_differences(members(core)[LAUNCHER]) == []
    source = tmp_path / "other.c"
    source.write_text("const char *unknown(void);\nconst char *leaked(void) { return unknown(); }\n")
    library, user = tmp_path / "libother.so", tmp_path / "user.so"
    command = ["g++", "-xc", str(source), "-xnone", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    subprocess.run([*command, "-o", str(library)], check=True)
    subprocess.run([*command, f"-L{tmp_path}", "-lother", "-Wl,-rpath,/nowhere", "-o", str(user)], check=True)
    found = launcher_differences(user.read_bytes())
    assert f"{LAUNCHER}: is linked to libother.so" in found
    assert f"{LAUNCHER}: exports leaked" in found
    assert f"{LAUNCHER}: takes unknown from an unknown library" in found
    assert any("DT_RUNPATH" in line or "DT_RPATH" in line for line in found)
    assert launcher_differences(b"not ELF")[0].startswith(f"{LAUNCHER}: not a readable library")


LISTING = """
.L_x_0:
        /*0000*/                   LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64] ;
        /*0010*/              @!P1 HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/             @!UP0 UTMALDG.4D [UR8], [UR4] ;
        /*0030*/                   MEMBAR.ALL.GPU ;
        /*0040*/                   CCTL.IVALL ;
        /*0050*/                   MEMBAR.ALL.CTA ;
        /*0060*/               @P0 CCTL.E.PF2 [R2] ;
"""


@pytest.mark.parametrize(
    "ext, cluster, wrong",
    [
        ("native", 1, []),
        ("tma", 1, ["has 1 CCTL.IVALL", "has 1 MEMBAR.ALL.GPU"]),
        ("tma", 2, []),
        ("hopper", 2, ["has no HGMMA"]),
    ],
)
def test_instructions_that_a_kernel_must_or_must_not_have(
    extra: Path, ext: str, cluster: int, wrong: list[str]
) -> None:
    kernel = replace(Manifest.from_json(members(extra)[MANIFEST]).kernels[0], ext=ext, cluster=cluster)
    found = sass.count(LISTING)
    assert found["HMMA.16816.F32.BF16"] == 1 and sum(found.values()) == 7
    assert sass.wrong_instructions(kernel, found) == wrong
    assert sass.wrong_instructions(replace(kernel, problems=("merge",)), {}) == []


def test_a_kernel_that_computes_nothing_is_found_by_its_instructions(extra: Path, small_tree: Path) -> None:
    nvdisasm = sass.find_nvdisasm()
    assert nvdisasm is not None, "the dependency group test has it"
    found = inspect(Wheel.read(extra), load_spec(small_tree), nvdisasm)
    assert found == [f"{CUBIN}: has no HMMA", f"{CUBIN}: has no LDGSTS"]
    with pytest.raises(FactsError, match="nvdisasm cannot read"):
        sass.opcodes(b"not ELF", nvdisasm)


def test_an_unrepaired_wheel_is_refused(check_wheels: ModuleType, core: Path) -> None:
    (found,) = check_wheels.platform_differences(core)
    assert found.startswith("its platform is linux_")


def test_wheels_install_without_torch_and_leave_nothing(
    check_wheels: ModuleType,
    core: Path,
    extra: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(core.parent)
    assert check_wheels.installation_differences([Path(core.name), extra]) == []
    assert "1 kernels, cubins verified" in capsys.readouterr().out


def test_a_pack_that_core_turns_away_is_found(
    check_wheels: ModuleType, core: Path, extra: Path, tmp_path: Path
) -> None:
    cubin = bytearray(members(extra)[CUBIN])
    cubin[-1] ^= 1
    tampered = tmp_path / extra.name
    rewrite(extra, tampered, {CUBIN: bytes(cubin)})
    (found,) = check_wheels.installation_differences([core, tampered])
    assert found.startswith("python -m ffpa_attn packs: status 1") and "TURNED AWAY" in found


def test_the_command_fails_on_a_bad_folder(
    check_wheels: ModuleType, extra: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(extra, tmp_path / extra.name, {CUBIN: None})
    assert check_wheels.main([str(tmp_path), "--contents-only"]) == 1
    assert f"error: {extra.name}: {CUBIN}: missing" in capsys.readouterr().err
