"""Kernel packs: found through entry points, checked, never imported.

An entry point of the group `ffpa.kernel_packs` names a top-level package that holds `manifest.json` and the cubins. A
pack that fails a check is kept with the reason. Needs no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from .errors import PackError
from .manifest import KernelInfo, Manifest, ManifestError
from .recipes import defect
from .version import core_version

GROUP = "ffpa.kernel_packs"
MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
NO_KERNELS = "nokernels"
"""Local version label of a distribution built without kernels: its entry point leads to nothing."""


@dataclass(frozen=True)
class Pack:
    """An accepted pack: its manifest, and the folder that its files are in."""

    name: str
    root: Path
    manifest: Manifest
    _images: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def distribution(self) -> str:
        return self.manifest.distribution

    @property
    def kernels(self) -> tuple[KernelInfo, ...]:
        return self.manifest.kernels

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(sorted({k.arch for k in self.kernels}, key=lambda arch: (len(arch), arch)))

    def image(self, kernel: KernelInfo) -> bytes:
        """The cubin of `kernel`, checked against size and sha256 on the first read and kept.

        Raises:
            PackError: the file is missing, cannot be read or is not the one that the manifest describes.
        """
        with self._lock:
            image = self._images.get(kernel.id)
            if image is None:
                image = self._images[kernel.id] = self._read(kernel)
            return image

    def _read(self, kernel: KernelInfo) -> bytes:
        path = self.root / kernel.file
        try:
            image = path.read_bytes()
        except OSError as error:
            raise PackError(f"pack {self.name!r}: cannot read {kernel.file}: {error.strerror or error}") from error
        if len(image) != kernel.size:
            raise PackError(
                f"pack {self.name!r}: {kernel.file} has {len(image)} bytes, the manifest says {kernel.size}"
            )
        digest = hashlib.sha256(image).hexdigest()
        if digest != kernel.sha256:
            raise PackError(
                f"pack {self.name!r}: {kernel.file} has sha256 {digest}, the manifest says {kernel.sha256}; "
                f"reinstall {self.distribution}"
            )
        return image

    def verify(self) -> None:
        """Read and check every cubin; raises PackError for the first bad one."""
        for kernel in self.kernels:
            self._read(kernel)


@dataclass(frozen=True)
class RejectedPack:
    """A pack that was turned away, and why."""

    name: str
    distribution: str
    version: str
    reason: str


@dataclass(frozen=True)
class PackSet:
    """The packs of a process: those in use and those turned away."""

    packs: tuple[Pack, ...] = ()
    rejected: tuple[RejectedPack, ...] = ()

    def without(self, pack: Pack, reason: str) -> PackSet:
        """The set with `pack` turned away for `reason`."""
        rejected = RejectedPack(pack.name, pack.distribution, pack.version, reason)
        return PackSet(tuple(p for p in self.packs if p is not pack), (*self.rejected, rejected))

    def verified(self) -> PackSet:
        """The set after reading every cubin and turning away packs with a bad one."""
        result = self
        for pack in self.packs:
            try:
                pack.verify()
            except PackError as error:
                result = result.without(pack, str(error))
        return result


def discover(*, version: str | None = None, entry_points: Iterable[metadata.EntryPoint] | None = None) -> PackSet:
    """Find and check every installed pack. Never raises for a bad pack.

    Args:
        version: the version that packs must have, apart from a local label; that of ffpa-core when None.
        entry_points: what to look at instead of the installed distributions.
    """
    if entry_points is None:
        entry_points = metadata.entry_points(group=GROUP)
    version = core_version() if version is None else version
    found = PackSet()
    # core first, so that a stray pack with the same kernels never displaces it
    for entry in sorted(entry_points, key=lambda e: (e.name != "core", e.name, e.value)):
        distribution, installed = _origin(entry)
        if installed.endswith(f"+{NO_KERNELS}"):
            continue
        try:
            pack = load(entry.name, _locate(entry.value), version=version)
            _check_duplicates(pack, found.packs)
            found = replace(found, packs=(*found.packs, pack))
        except Exception as error:  # a pack is foreign data: whatever it provokes must not break the import
            reason = str(error) if isinstance(error, PackError) else f"{type(error).__name__}: {error}"
            rejected = RejectedPack(entry.name, distribution, installed, reason)
            found = replace(found, rejected=(*found.rejected, rejected))
    return found


def load(name: str, root: Path, *, version: str) -> Pack:
    """The pack `name` in the folder `root`; PackError when it fails a check."""
    path = root / MANIFEST_FILE
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise PackError(f"{MANIFEST_FILE} is larger than {MAX_MANIFEST_BYTES} bytes")
        manifest = Manifest.from_json(path.read_bytes())
    except OSError as error:
        raise PackError(f"cannot read {MANIFEST_FILE}: {error.strerror or error}") from error
    except ManifestError as error:
        raise PackError(f"{MANIFEST_FILE}: {error}") from error
    if manifest.pack != name:
        raise PackError(f"the manifest is of pack {manifest.pack!r}, the entry point says {name!r}")
    wanted, found = _public(version), _public(manifest.version)
    if found != wanted:
        raise PackError(
            f"version {manifest.version} does not fit ffpa-core {version}; the two must be of one version: "
            f"install {manifest.distribution}=={wanted} or ffpa-core=={found}"
        )
    for kernel in manifest.kernels:
        wrong = defect(kernel)
        if wrong is not None:
            raise PackError(f"kernel {kernel.id}: {wrong}")
        _check_file(root, kernel)
    return Pack(name, root, manifest)


def _locate(value: str) -> Path:
    """The folder of the top-level package `value`, found without importing it."""
    if not value.isidentifier():
        raise PackError(f"the entry point must be the name of a top-level package, got {value!r}")
    try:
        spec = importlib.util.find_spec(value)
    except (ImportError, ValueError) as error:
        raise PackError(f"package {value!r} cannot be found: {error}") from error
    if spec is None:
        raise PackError(f"package {value!r} is not installed")
    if not spec.submodule_search_locations or not spec.origin:
        raise PackError(f"{value!r} is no package with an __init__.py")
    init = Path(spec.origin)
    try:
        source = init.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"cannot read {init.name} of package {value!r}: {error}") from error
    if any(line.strip() and not line.strip().startswith("#") for line in source.splitlines()):
        raise PackError(f"package {value!r} contains code in __init__.py; a pack is data and its __init__.py is empty")
    return init.parent


def _check_file(root: Path, kernel: KernelInfo) -> None:
    name = PurePosixPath(kernel.file)
    if name.is_absolute() or "\\" in kernel.file or ":" in kernel.file or ".." in name.parts:
        raise PackError(f"kernel {kernel.id}: file {kernel.file!r} is no plain relative path")
    path = root / name
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise PackError(f"kernel {kernel.id}: file {kernel.file!r} leads out of the package")
        size = path.stat().st_size
    except OSError as error:
        raise PackError(f"kernel {kernel.id}: cannot read {kernel.file}: {error.strerror or error}") from error
    if size != kernel.size:
        raise PackError(f"kernel {kernel.id}: {kernel.file} has {size} bytes, the manifest says {kernel.size}")


def _check_duplicates(pack: Pack, accepted: tuple[Pack, ...]) -> None:
    owners = {kernel.id: other.name for other in accepted for kernel in other.kernels}
    for kernel in pack.kernels:
        if kernel.id in owners:
            raise PackError(f"kernel {kernel.id} is already in pack {owners[kernel.id]!r}")
    if any(other.name == pack.name for other in accepted):
        raise PackError(f"a pack named {pack.name!r} is already there")


def _origin(entry: metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that an entry point comes from; empty where its metadata is damaged."""
    try:
        return (entry.dist.name or "", entry.dist.version or "") if entry.dist is not None else ("", "")
    except Exception:  # what a missing or broken METADATA raises depends on the version of Python
        return "", ""


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion as error:
        raise PackError(f"{version!r} is no version: {error}") from error
