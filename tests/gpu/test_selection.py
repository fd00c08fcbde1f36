"""The installed packs are whole: no kernel of their selection was lost on the way here."""

from pathlib import Path

import pytest

from ffpa_attn import installed_packs
from ffpa_build.matrix import expand
from ffpa_build.selection import Selection
from ffpa_build.spec import load_spec

from .selection import missing

SPEC = load_spec(Path(__file__).resolve().parents[2])


def test_no_pack_was_turned_away():
    assert [f"{pack.name}: {pack.reason}" for pack in installed_packs().rejected] == []


def test_the_packs_have_every_kernel_of_what_they_have_some_of():
    packs = installed_packs().packs
    assert packs, "no pack is installed"
    assert {pack.name: missing(SPEC, pack.name, pack.kernels) for pack in packs} == {pack.name: [] for pack in packs}


def test_the_packs_are_what_was_built(pytestconfig):
    expected = pytestconfig.getoption("--built")
    if expected is None:
        pytest.skip("nothing says what was built: --built PRESET:ARCH, which `nox -s gpu` gives")
    preset, _, arch = expected.partition(":")
    built = {variant.id for variant in expand(SPEC, Selection.make(SPEC, preset, archs=arch)).variants}
    assert {kernel.id for pack in installed_packs().packs for kernel in pack.kernels} == built
