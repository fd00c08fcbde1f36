"""`python -m ffpa_build.pin <toolchain>`: prints the `[hashes]` table for a file of `variants/toolchains/`.

Asks the package index, through pip, for the wheels that each supported platform and Python would install.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ffpa_build.errors import ToolchainError
from ffpa_build.spec import find_root
from ffpa_build.tables import read_toml

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86_64": [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12)],
    "Linux aarch64": [f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 24, 17)],
    "Windows": ["win_amd64"],
}


def wheel_hashes(requirements: tuple[str, ...], python: str, platforms: list[str]) -> dict[str, str]:
    """The sha256 of each requirement's wheel, `name==version -> hex digits`. Raises ToolchainError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
        command += ["--only-binary", ":all:", "--python-version", python, "--target", folder, "--report", str(report)]
        command += [part for platform in platforms for part in ("--platform", platform)]
        result = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ToolchainError(f"Python {python}, {platforms[0]}: {result.stderr.strip()}")
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        f"{row['metadata']['name'].lower()}=={row['metadata']['version']}": row["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for row in rows
    }


def main() -> None:
    # Not through load_spec, which refuses a file that has no hashes yet.
    name = f"variants/toolchains/{sys.argv[1]}.toml"
    declared = read_toml(find_root() / name, name)
    requirements = tuple(declared["requirements"])
    found: dict[str, set[str]] = {requirement: set() for requirement in requirements}
    # Only the bindings are built per Python.
    pythons = PYTHONS if declared["kind"] == "nvrtc" else PYTHONS[:1]
    for platforms in PLATFORMS.values():
        for python in pythons:
            for requirement, digest in wheel_hashes(requirements, python, platforms).items():
                found[requirement].add(digest)
    print("[hashes]")
    for requirement, digests in found.items():
        print(f'"{requirement}" = [')
        for digest in sorted(digests):
            print(f'  "{digest}",')
        print("]")


if __name__ == "__main__":
    main()
