"""`python -m ffpa_build.wheel_variants WHEEL...`: writes what each wheel would declare as a wheel variant (PEP 825).

The file stands beside the wheel, `<wheel's stem>.variants.json`, in the format of an index's variants file. The wheel
stays an ordinary one: installers that know nothing of variants see no difference.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

from ffpa_attn.manifest import Manifest, ManifestError
from ffpa_build.cache import write_atomically
from ffpa_build.errors import BuildError
from ffpa_build.model import ARCH_NAME

SCHEMA = "https://variants-schema.wheelnext.dev/v0.2.0.json"
PROVIDER = {
    "requires": ["nvidia-variant-provider"],
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
}


def read_manifest(wheel: Path) -> Manifest:
    """The manifest of the pack in a wheel. Raises BuildError for a wheel without one, or with several."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith("/manifest.json")]
        if len(names) != 1:
            raise BuildError(f"{wheel.name}: has {len(names)} kernel packs, one is needed to describe it as a variant")
        try:
            return Manifest.from_json(archive.read(names[0]))
        except ManifestError as error:
            raise BuildError(f"{wheel.name}: {names[0]}: {error}") from error


def properties(manifest: Manifest) -> dict[str, dict[str, list[str]]]:
    """namespace -> feature -> values: the archs of the cubins, and the least CUDA version of the driver.

    An index takes a variant whose `sm_arch` has one value that the device supports. A driver loads cubins of its own
    CUDA major whatever the minor; on a newer major too, so there is no upper bound.
    """
    # An emulated kernel is compiled for another arch than it is designed for.
    targets = {kernel.id.partition("-for_")[2] or kernel.arch for kernel in manifest.kernels}
    matches = [match for match in map(ARCH_NAME.fullmatch, targets) if match is not None]
    values = [f"{match[1]}{match[2]}_real" for match in sorted(matches, key=lambda match: (int(match[1]), match[2]))]
    major = manifest.compiler.version.split(".")[0]
    return {"nvidia": {"cuda_version_lower_bound": [f"{major}.0"], "sm_arch": values}}


def describe(wheel: Path) -> dict[str, Any]:
    """The contents of the file for a wheel. Raises BuildError."""
    manifest = read_manifest(wheel)
    label = f"cu{manifest.compiler.version.split('.')[0]}.{manifest.pack}"
    return {
        "$schema": SCHEMA,
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": PROVIDER},
        "variants": {label: properties(manifest)},
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ffpa_build.wheel_variants", description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="a wheel with a kernel pack")
    try:
        for wheel in parser.parse_args(arguments).wheels:
            file = wheel.with_name(f"{wheel.stem}.variants.json")
            write_atomically(file, (json.dumps(describe(wheel), indent=1, sort_keys=True) + "\n").encode())
            print(file)
    except (BuildError, OSError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
