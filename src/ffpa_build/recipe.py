"""`python -m ffpa_build.recipe check | write`: the conda recipe, recipe/recipe.yaml and recipe/variants.yaml.

An output for every pack of the tables and one, `ffpa`, that brings them all; a variant for every nvcc of
`variants/toolchains/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ffpa_build import generated
from ffpa_build.distributions import META, RUNTIME_REQUIREMENTS, is_core
from ffpa_build.model import Pack, Spec, ToolchainSpec
from ffpa_build.tables import read_toml

FOLDER = Path("recipe")
_HEADER = "# Made from variants/ and the root pyproject.toml: python -m ffpa_build.recipe write\n"
_CONDA_NAMES = {"torch": "pytorch"}
"""Where conda has another name for a Python distribution."""


def render(spec: Spec) -> dict[Path, str]:
    """Both files."""
    return {FOLDER / "recipe.yaml": _recipe(spec), FOLDER / "variants.yaml": _variants(spec)}


def compilers(spec: Spec) -> list[ToolchainSpec]:
    """The toolchains that conda can bring: nvcc, oldest first."""
    found = [toolchain for toolchain in spec.toolchains.values() if toolchain.kind == "nvcc"]
    return sorted(found, key=lambda toolchain: [int(part) for part in toolchain.version.split(".")])


def release(toolchain: ToolchainSpec) -> str:
    """Major and minor: 12.9."""
    return ".".join(toolchain.version.split(".")[:2])


def _variants(spec: Spec) -> str:
    found = compilers(spec)
    rows = {
        "cuda_compiler_version": [release(toolchain) for toolchain in found],
        "ffpa_nvcc_version": [toolchain.version for toolchain in found],
        "ffpa_toolchain": [toolchain.name for toolchain in found],
        # A driver of a CUDA major loads the cubins of every minor that came with that major.
        "ffpa_driver": [toolchain.version.split(".")[0] for toolchain in found],
    }
    text = _HEADER + "cuda_compiler:\n  - cuda-nvcc\n"
    for key, values in rows.items():
        text += f"{key}:\n" + "".join(f'  - "{value}"\n' for value in values)
    return text + "zip_keys:\n  - [" + ", ".join(rows) + "]\n"


def _requirement(text: str) -> str | None:
    """A Python requirement as a conda one; None if it is for Pythons that the recipe does not build with."""
    text, _, marker = text.partition(";")
    if marker:
        return None
    name = text.rstrip("0123456789.,<>=! ")
    return f"{_CONDA_NAMES.get(name, name)} {text[len(name) :]}".strip()


def _lines(requirements: list[str], indent: int) -> str:
    return "".join(f"{' ' * indent}- {line}\n" for line in requirements)


def _recipe(spec: Spec) -> str:
    groups = read_toml(spec.root / "pyproject.toml", "pyproject.toml")["dependency-groups"]
    build = [line for line in map(_requirement, groups["build"]) if line is not None]
    launcher = [line for line in map(_requirement, groups["launcher"]) if line is not None]
    packs = list(spec.packs.values())
    core = next(filter(is_core, packs))
    outputs = "".join(_pack(pack, core, build, launcher) for pack in packs)
    return f"""\
{_HEADER}schema_version: 1

context:
  version: "{spec.version}"
  build_number: 0

recipe:
  name: {META}
  version: ${{{{ version }}}}

# In a feedstock, the address and the sha256 of a release's source archive stand here.
source:
  path: ..
  use_gitignore: true

build:
  number: ${{{{ build_number }}}}
  skip:
    - not linux

outputs:
{outputs}{_meta(packs)}
about:
  license: Apache-2.0
  license_file: LICENSE
  summary: Exact scaled-dot-product attention for NVIDIA GPUs, head dimensions up to 1024
"""


def _pin(pack: Pack) -> str:
    # The version, and not the build: a pack for every platform stands beside the core of each.
    return f'${{{{ pin_subpackage("{pack.distribution}", lower_bound="x.x.x", upper_bound="x.x.x") }}}}'


def _pack(pack: Pack, core: Pack, build: list[str], launcher: list[str]) -> str:
    carries_runtime = is_core(pack)
    runtime = [line for line in map(_requirement, RUNTIME_REQUIREMENTS) if line is not None]
    # Only the launcher is host code. Neither it nor a pack is tied to one Python.
    kind = "python:\n        version_independent: true" if carries_runtime else "noarch: python"
    host = ["python >=3.11", "pip", *build, *(launcher if carries_runtime else [])]
    run = ["python >=3.11", *(launcher + runtime if carries_runtime else [_pin(core)])]
    pip = "python -m pip install --no-deps --no-build-isolation --no-index -vv"
    script = f'FFPA_BUILD_CACHE="$SRC_DIR/.ffpa-cache" {pip} ./packages/{pack.distribution}'
    label = 'cuda${{ cuda_compiler_version | replace(".", "") }}_h${{ hash }}_${{ build_number }}'
    return f"""\
  - package:
      name: {pack.distribution}
    build:
      {kind}
      string: {label}
      script:
        env:
          FFPA_BUILD_PRESET: release
          FFPA_BUILD_TOOLCHAIN: ${{{{ ffpa_toolchain }}}}
        content:
          - {script}
    requirements:
      build:
        - ${{{{ compiler("cxx") }}}}
        - ${{{{ compiler("cuda") }}}}
        - cuda-nvcc-tools ==${{{{ ffpa_nvcc_version }}}}
      host:
{_lines(host, 8)}\
      run:
{_lines(run, 8)}\
      run_constraints:
        - __cuda >=${{{{ ffpa_driver }}}}
    tests:
      - package_contents:
          site_packages:
            - {pack.package}/manifest.json
{_launcher_file() if carries_runtime else ""}\
    about:
      summary: "{pack.title}"
"""


def _launcher_file() -> str:
    return "            - ffpa_attn/_launcher.so\n"


def _meta(packs: list[Pack]) -> str:
    return f"""\
  - package:
      name: {META}
    build:
      noarch: generic
    requirements:
      run:
{_lines([_pin(pack) for pack in packs], 8)}\
    about:
      summary: every kernel pack of ffpa
"""


if __name__ == "__main__":
    sys.exit(generated.main("ffpa_build.recipe", "The conda recipe from the tables.", render))
