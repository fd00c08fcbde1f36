"""The bill of materials of a wheel (CycloneDX JSON, PEP 770): what its binaries were made from, and by what.

The same contents give the same text: there is no time in it, and its serial number follows from the rest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ffpa_build.model import ToolchainSpec

COMMIT_FILE = "COMMIT"
"""In an sdist and in an archive that git made: the commit. In a checkout, the place for git to write it."""
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.ffpa")


@dataclass(frozen=True)
class Material:
    """What a wheel was made with. `pypi`: the name is one of the Python package index."""

    name: str
    version: str
    purpose: str
    pypi: bool = True


def compiler_materials(toolchain: ToolchainSpec, from_packages: bool) -> list[Material]:
    """The compiler of the kernels and the headers that come with it; the kernels' own are in the source digest."""
    purpose = f"compiler of the kernels, or its headers ({toolchain.name})"
    if not from_packages:
        return [Material(toolchain.kind, toolchain.version, f"{purpose}, of the system", pypi=False)]
    parts = (requirement.partition("==") for requirement in toolchain.requirements)
    return [Material(name, number, purpose) for name, _, number in parts]


def commit(tree: Path) -> str | None:
    """The commit of a source tree: the note of an archive, or git's if no tracked file is changed; None if unknown."""
    note = tree / COMMIT_FILE
    if note.is_file():
        text = note.read_text(encoding="ascii", errors="replace").strip()
        if re.fullmatch(r"[0-9a-f]{40,64}", text):
            return text
    git = shutil.which("git")
    # Not the repository of another project, in which an unpacked tree may lie.
    if git is None or not (tree / ".git").exists():
        return None

    def answer(*arguments: str) -> str | None:
        result = subprocess.run([git, "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else None

    return answer("rev-parse", "HEAD") if answer("status", "--porcelain", "--untracked-files=no") == "" else None


def render(distribution: str, version: str, materials: Iterable[Material], properties: Mapping[str, str | None]) -> str:
    """The JSON text. Properties without a value are left out; the others are named `ffpa:<key>`."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    def purl(name: str, number: str) -> PackageURL:
        return PackageURL("pypi", name=name, version=number)

    root = Component(
        name=distribution,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=distribution,
        purl=purl(distribution, version),
        licenses=[LicenseExpression("Apache-2.0")],
    )
    components = [
        Component(
            name=material.name,
            version=material.version,
            type=ComponentType.APPLICATION,
            bom_ref=f"{material.name}@{material.version}",
            description=material.purpose,
            scope=ComponentScope.EXCLUDED,  # used to make the wheel, not part of it
            purl=purl(material.name, material.version) if material.pypi else None,
        )
        for material in materials
    ]
    stated = [Property(name=f"ffpa:{key}", value=value) for key, value in properties.items() if value is not None]
    metadata = BomMetaData(component=root, properties=stated)
    metadata.timestamp = None  # type: ignore[assignment]  # the library would take the present
    bom = Bom(components=components, metadata=metadata, serial_number=uuid.UUID(int=0))
    bom.register_dependency(root, components)
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(_NAMESPACE, text)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"
