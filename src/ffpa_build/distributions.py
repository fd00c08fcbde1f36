"""The distributions that the pack table declares, and their folders under packages/.

A row of ``variants/packs.toml`` is a wheel. Its folder holds four small files that are all made here, so that a new
pack is a row and ``python -m ffpa_build.distributions write``; CI runs ``check``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ffpa_build.model import Pack, Spec
from ffpa_build.spec import find_root, load_spec
from ffpa_build.tables import read_toml

META = "ffpa"
CORE_PACK = "core"
"""The pack whose wheel carries the runtime and the launcher besides its kernels."""
ENTRY_POINT_GROUP = "ffpa.kernel_packs"
REQUIRES_PYTHON = ">=3.10"
RUNTIME_REQUIREMENTS = ("packaging>=23.2", "torch>=2.6")


def is_core(pack: Pack) -> bool:
    return pack.name == CORE_PACK


def extras(spec: Spec) -> dict[str, list[str]]:
    """The extras of the meta distribution, as distribution names.

    A pack's extra brings that pack. An arch's extra (`sm90`: the suffix is the compiler's business) brings the first
    pack of the table that serves the arch, which is the one with its general kernels; packs further down (a quantised
    family, say) are asked for by their own name.
    """
    found: dict[str, list[str]] = {}
    for arch in spec.archs.values():
        serving = [pack.distribution for pack in spec.packs.values() if arch.name in pack.archs]
        if serving:
            found[f"sm{arch.sm}"] = serving[:1]
    for pack in spec.packs.values():
        found[pack.name] = [pack.distribution]
    found["all"] = [pack.distribution for pack in spec.packs.values()]
    return found


def render(spec: Spec) -> dict[Path, str]:
    """Every generated file, by its path in the tree; the meta distribution's pyproject and README are hand-written."""
    licence = (spec.root / "LICENSE").read_text(encoding="utf-8")
    groups = _dependency_groups(spec.root)
    meta = Path("packages", META)
    files = {meta / "hatch_build.py": _HATCH_BUILD, meta / "LICENSE": licence}
    for pack in spec.packs.values():
        folder = Path("packages", pack.distribution)
        files[folder / "pyproject.toml"] = _pyproject(pack, groups["build"], groups["launcher"])
        files[folder / "hatch_build.py"] = _HATCH_BUILD
        files[folder / "README.md"] = _readme(pack)
        files[folder / "LICENSE"] = licence
    return files


def differences(spec: Spec) -> list[str]:
    """Where packages/ departs from the tables: one line a file; empty when all is well."""
    found = []
    expected = render(spec)
    for path, text in expected.items():
        file = spec.root / path
        if not file.is_file():
            found.append(f"{path}: missing")
        elif file.read_text(encoding="utf-8") != text:
            found.append(f"{path}: differs from the tables")
    known = {path.parts[1] for path in expected}
    for folder in sorted((spec.root / "packages").iterdir()):
        if (folder / "pyproject.toml").is_file() and folder.name not in known:
            found.append(f"packages/{folder.name}: no row of variants/packs.toml has this distribution")
    return found


def write(spec: Spec) -> list[Path]:
    """Write what differs and return it. A folder without a row is left for a person to remove."""
    written = []
    for path, text in render(spec).items():
        file = spec.root / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def _dependency_groups(root: Path) -> dict[str, list[str]]:
    return read_toml(root / "pyproject.toml", "pyproject.toml")["dependency-groups"]


def _quote(text: str) -> str:
    if any(c in text for c in '"\\\n'):
        raise ValueError(f"variants/packs.toml: {text!r}: a quote, a backslash or a line break cannot stand here")
    return f'"{text}"'


def _lines(values: list[str]) -> str:
    return "".join(f"  {_quote(value)},\n" for value in values)


def _pyproject(pack: Pack, build: list[str], launcher: list[str]) -> str:
    core = is_core(pack)
    requires = _lines([*build, *launcher] if core else build)
    dependencies = f"dependencies = [\n{_lines([*launcher, *RUNTIME_REQUIREMENTS])}]\n" if core else ""
    dynamic = '["version"]' if core else '["version", "dependencies"]'
    return f"""\
# Made from variants/packs.toml and the root pyproject.toml: python -m ffpa_build.distributions write
[build-system]
requires = [
{requires}]
build-backend = "hatchling.build"

[project]
name = {_quote(pack.distribution)}
description = {_quote("ffpa: " + pack.title)}
readme = "README.md"
requires-python = "{REQUIRES_PYTHON}"
license = "Apache-2.0"
license-files = ["LICENSE"]
classifiers = [
  "Environment :: GPU :: NVIDIA CUDA",
  "Programming Language :: Python :: 3",
  "Topic :: Scientific/Engineering :: Artificial Intelligence",
]
{dependencies}dynamic = {dynamic}

[project.entry-points."{ENTRY_POINT_GROUP}"]
{pack.name} = {_quote(pack.package)}

[tool.hatch.metadata.hooks.custom]
pack = {_quote(pack.name)}

[tool.hatch.build.hooks.custom]
pack = {_quote(pack.name)}

{_DEVELOPMENT if core else ""}[tool.hatch.build.targets.sdist]
only-include = ["hatch_build.py", "LICENSE", "README.md"]

[tool.hatch.build.targets.wheel]
bypass-selection = true
"""


def _readme(pack: Pack) -> str:
    kind = "runtime, launcher and kernels" if is_core(pack) else "kernels"
    return f"""\
# {pack.distribution}

{pack.title[0].upper() + pack.title[1:]}.

The {kind} of ffpa, exact attention for head dimensions up to 1024, for {", ".join(pack.archs)}.
Install `{META}` with the extra for your GPU rather than this wheel by its own name, and the two stay of one version.
"""


_DEVELOPMENT = """\
[tool.hatch.build]
dev-mode-dirs = ["../../src"]

"""

_HATCH_BUILD = '''\
"""Hands this distribution's build to ffpa_build.wheel, two folders up in the tree and beside this file in an sdist."""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
tree = here if (here / "variants").is_dir() else here.parent.parent
sys.path.insert(0, str(tree / "src"))

from ffpa_build.wheel import FfpaBuildHook, FfpaMetadataHook  # noqa: E402, F401
'''


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ffpa_build.distributions", description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["check", "write"])
    parser.add_argument("--tree", type=Path, default=find_root(), help="root of the sources")
    options = parser.parse_args(arguments)
    spec = load_spec(options.tree)
    if options.action == "write":
        for path in write(spec):
            print(path)
    found = differences(spec)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
