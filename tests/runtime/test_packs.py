"""Packs are found as installed distributions, checked, and never imported."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_fakes import CUBIN, H200, FakeLauncher, attend, explain, kernel, manifest, packs_of, write_pack

from ffpa_attn.__main__ import info_lines, main, pack_lines
from ffpa_attn.errors import PackError
from ffpa_attn.packs import GROUP, PackSet, discover
from ffpa_attn.version import core_version

VERSION = core_version()


class Site:
    """A folder on sys.path into which distributions with packs are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, name, *kernels, package=None, entry=None, version=VERSION, init="", content=None) -> Path:
        package = package or f"ffpa_test_pack_{name}"
        content = content or manifest(*kernels, pack=name, version=version)
        root = write_pack(self.path / package, content)
        (root / "__init__.py").write_text(init, encoding="utf-8")
        self.register(name, entry or package, version)
        return root

    def register(self, name, value, version=VERSION) -> None:
        info = self.path / f"ffpa_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ffpa-{name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return Site(tmp_path)


def rejection(name="core"):
    found = discover()
    assert [p.name for p in found.packs if p.name == name] == []
    return next(r for r in found.rejected if r.name == name)


def test_a_second_small_pack_is_found_beside_core(site):
    site.install("extra", kernel("sm_120f"))
    site.install("core", kernel(), kernel("sm_89"), init="# only a comment\n\n")
    found = discover()
    assert [p.name for p in found.packs] == ["core", "extra"] and found.rejected == ()
    assert found.packs[0].archs == ("sm_89", "sm_90a") and found.packs[0].distribution == "ffpa-core"
    assert found.packs[1].image(found.packs[1].kernels[0]) == CUBIN
    assert not any(name.startswith("ffpa_test_pack") for name in sys.modules)


def test_a_manifest_that_is_no_json(site):
    root = site.install("core", kernel())
    (root / "manifest.json").write_text("{ not json")
    got = rejection()
    assert "not valid JSON" in got.reason and (got.distribution, got.version) == ("ffpa-core", VERSION)


def test_a_manifest_of_another_abi(site):
    root = site.install("core", kernel())
    data = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**data, "pack_abi": 99}))
    assert "pack_abi = 99" in rejection().reason


def test_no_manifest(site):
    (site.install("core", kernel()) / "manifest.json").unlink()
    assert "cannot read manifest.json: No such file" in rejection().reason


def test_a_missing_cubin(site):
    root = site.install("core", kernel())
    (root / kernel().file).unlink()
    assert f"cannot read {kernel().file}: No such file" in rejection().reason


def test_a_cubin_of_another_size(site):
    root = site.install("core", kernel())
    (root / kernel().file).write_bytes(CUBIN + b"x")
    assert f"has {len(CUBIN) + 1} bytes, the manifest says {len(CUBIN)}" in rejection().reason


def test_a_cubin_that_leads_out_of_the_package(site, tmp_path):
    root = site.install("core", kernel())
    (tmp_path / "elsewhere").write_bytes(CUBIN)
    (root / kernel().file).unlink()
    (root / kernel().file).symlink_to(tmp_path / "elsewhere")
    assert "leads out of the package" in rejection().reason


def test_a_cubin_with_another_hash_is_found_when_it_is_read(site):
    root = site.install("core", kernel())
    (root / kernel().file).write_bytes(CUBIN[::-1])
    found = discover()
    with pytest.raises(PackError, match="the manifest says .*; reinstall ffpa-core"):
        found.packs[0].image(found.packs[0].kernels[0])
    checked = found.verified()
    assert checked.packs == () and "has sha256" in checked.rejected[0].reason


TMA = {"recipe": "split_d_tma", "box_cols": 64, "box_q_rows": 128, "box_kv_rows": 64, "swizzle": 128}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recipe": "other"}, "recipe 'other' is not one of merge, persist_d, "),
        ({"box_cols": 0}, "box_cols must be in 1..256, the manifest says 0"),
        ({"box_q_rows": 257}, "box_q_rows must be in 1..256, the manifest says 257"),
        ({"box_kv_rows": 0}, "box_kv_rows must be in 1..256, the manifest says 0"),
        ({"box_cols": 72}, "box_cols must be in 1..64 beside a swizzle of 128 bytes, the manifest says 72"),
    ],
)
def test_a_kernel_that_no_call_could_launch_turns_its_pack_away(site, changes, reason):
    row = kernel(**{**TMA, **changes})
    site.install("core", kernel("sm_89"), row)
    assert f"kernel {row.id}: {reason}" in rejection().reason


def test_boxes_and_recipes_of_this_tree_are_accepted(site):
    site.install("core", kernel(**TMA), kernel("sm_89"), kernel("sm_80", recipe="merge", problems=("merge",)))
    assert [pack.name for pack in discover().packs] == ["core"]


def test_a_kernel_id_that_core_has_turns_the_later_pack_away(site):
    site.install("aaa", kernel(), kernel("sm_89"))
    site.install("core", kernel())
    assert rejection("aaa").reason == f"kernel {kernel().id} is already in pack 'core'"
    assert [p.name for p in discover().packs] == ["core"]


def test_an_entry_point_that_would_raise_is_not_imported(site):
    site.install("core", kernel(), init="raise RuntimeError('imported')\n")
    assert "contains code in __init__.py" in rejection().reason


def test_an_entry_point_of_a_missing_module(site):
    site.register("core", "ffpa_test_pack_missing")
    assert rejection().reason == "package 'ffpa_test_pack_missing' is not installed"


def test_a_distribution_without_metadata_breaks_nothing(site):
    site.install("core", kernel())
    site.register("extra", "ffpa_test_pack_missing")
    (site.path / f"ffpa_extra-{VERSION}.dist-info" / "METADATA").unlink()
    assert [p.name for p in discover().packs] == ["core"]
    turned_away = rejection("extra")
    assert turned_away.reason == "package 'ffpa_test_pack_missing' is not installed"
    assert (turned_away.distribution, turned_away.version) == ("", "")


def test_a_core_built_without_kernels_is_not_a_bad_pack(site, capsys):
    site.register("core", "ffpa_test_pack_missing", version=f"{VERSION}+nokernels")
    site.install("extra", kernel("sm_120f"))
    found = discover()
    assert [p.name for p in found.packs] == ["extra"] and found.rejected == ()
    assert main(["packs"]) == 0


@pytest.mark.parametrize("value", ["ffpa_test_pack.sub", "ffpa_test_pack:manifest"])
def test_an_entry_point_that_is_no_top_level_name(site, value):
    site.register("core", value)
    assert "must be the name of a top-level package" in rejection().reason


def test_an_entry_point_of_a_plain_module(site, tmp_path):
    (tmp_path / "ffpa_test_module.py").write_text("")
    site.register("core", "ffpa_test_module")
    assert "is no package with an __init__.py" in rejection().reason


def test_a_pack_of_another_version_and_one_with_a_local_label(site):
    site.install("core", kernel(), version=f"{VERSION}+sm89")
    site.install("extra", kernel("sm_89"), version="9.9.9")
    found = discover()
    assert [p.version for p in found.packs] == [f"{VERSION}+sm89"]
    advice = f"install ffpa-extra=={VERSION} or ffpa-core==9.9.9"
    both = "the two must be of one version"
    assert found.rejected[0].reason == f"version 9.9.9 does not fit ffpa-core {VERSION}; {both}: {advice}"
    # A label says what was built, and no other distribution has to bear it.
    assert discover(version=f"{VERSION}+sm89").rejected[0].reason.endswith(advice)


def test_a_manifest_of_another_pack(site):
    site.install("core", content=manifest(kernel(), pack="other", version=VERSION))
    assert "the manifest is of pack 'other', the entry point says 'core'" in rejection().reason


def test_an_unexpected_failure_is_a_reason_too(site):
    site.register("core", "ffpa_test_pack_broken")
    sys.modules["ffpa_test_pack_broken"] = type(sys)("ffpa_test_pack_broken")
    sys.modules["ffpa_test_pack_broken"].__spec__ = None
    try:
        assert "cannot be found" in rejection().reason
    finally:
        del sys.modules["ffpa_test_pack_broken"]


def test_the_command_shows_packs_kernels_archs_and_the_reason(site, capsys):
    site.install("core", kernel(), kernel("sm_89"))
    root = site.install("extra", kernel("sm_120f"))
    (root / kernel("sm_120f").file).write_bytes(CUBIN[::-1])
    assert main(["packs"]) == 1
    text = capsys.readouterr().out
    assert f"core  ffpa-core {VERSION}  2 kernels" in text and "sm_89: 1 kernels; native; bf16; head dims 64" in text
    assert "extra  ffpa-extra" in text and "TURNED AWAY" in text and "sha256" in text
    assert main(["info"]) == 1
    assert "torch" in capsys.readouterr().out


def test_the_command_works_without_torch(site):
    site.install("core", kernel())
    code = "import sys; sys.modules['torch'] = None; from ffpa_attn.__main__ import main; sys.exit(main(['packs']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_env(site.path), check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 kernels, cubins verified" in done.stdout


def test_nothing_installed_is_said_plainly():
    assert "no kernel pack is installed" in pack_lines(PackSet())[1]


def test_a_torch_built_for_other_gpus_has_no_cuda_device(monkeypatch):
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert any("no CUDA device" in line for line in info_lines(PackSet()))


def test_a_bad_cubin_turns_its_pack_away_and_the_call_takes_the_next(tmp_path):
    import torch

    from ffpa_attn import Gates, Runtime

    good, bad = packs_of(tmp_path / "a", kernel("sm_90a", stages=2)), packs_of(tmp_path / "b", kernel(), pack="bad")
    (tmp_path / "b" / "bad" / kernel().file).write_bytes(CUBIN[::-1])
    both = replace(good, packs=good.packs + bad.packs)
    launcher = FakeLauncher()
    runtime = Runtime(packs=both, gates=Gates.open(), launcher=launcher, devices=lambda device: H200)
    q = torch.randn(1, 2, 8, 64, dtype=torch.bfloat16)
    assert explain(runtime, q, q, q).kernel == kernel(stages=2).id
    attend(runtime, q, q, q)
    assert launcher.prepared[0][0].stages == 2
    explained = explain(runtime, q, q, q)
    assert "sha256" in explained.packs_rejected[0].reason and "pack turned away: bad" in str(explained)


def test_threads_that_meet_a_bad_cubin_together_turn_its_pack_away_once(tmp_path):
    import torch

    from ffpa_attn import Gates, Runtime
    from ffpa_attn.packs import Pack

    together = threading.Barrier(2)

    class Bad(Pack):
        def image(self, kernel):
            together.wait(timeout=60)  # both threads have chosen this pack
            raise PackError(f"{kernel.id} is bad")

    good, fine = packs_of(tmp_path / "a", kernel(stages=2)), packs_of(tmp_path / "b", kernel(), pack="bad").packs[0]
    bad = Bad(fine.name, fine.root, fine.manifest)
    launcher = FakeLauncher()
    runtime = Runtime(
        packs=replace(good, packs=(bad, *good.packs)),
        gates=Gates.open(),
        launcher=launcher,
        devices=lambda device: H200,
    )
    q = torch.randn(1, 2, 8, 64, dtype=torch.bfloat16)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(attend, runtime, q, q, q) for _ in range(2)]
        assert torch.equal(calls[0].result(), calls[1].result())
    assert [rejected.name for rejected in runtime.packs.rejected] == ["bad"]
    assert {row.stages for row, *_ in launcher.prepared} == {2}


def _env(*paths: Path) -> dict[str, str]:
    import os

    import ffpa_attn

    source = str(Path(ffpa_attn.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), source])}
