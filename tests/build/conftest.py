"""Fixtures of the build system's tests: a source tree and a cache, both fresh."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from build_tree import REPOSITORY, write_tree  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves slow tests out unless -m speaks of them."""
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(autouse=True)
def no_build_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller's environment says to builds is not meant for these."""
    from ffpa_build.environment import READ

    for name in READ:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The root of a fresh source tree."""
    root = tmp_path / "tree"
    write_tree(root)
    return root


@pytest.fixture(scope="session")
def toolchain_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the default toolchain in it, unless the running environment has it."""
    from ffpa_build.spec import load_spec
    from ffpa_build.toolchain import resolve

    folder = tmp_path_factory.mktemp("toolchain-cache")
    resolve(load_spec(REPOSITORY).default_toolchain, folder)
    (folder / "toolchains").mkdir(exist_ok=True)
    return folder


@pytest.fixture
def cache(tmp_path: Path, toolchain_cache: Path) -> Path:
    """An empty cache of cubins that shares the toolchain."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "toolchains").symlink_to(toolchain_cache / "toolchains")
    return folder
