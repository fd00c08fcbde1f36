"""What can be built, and how: the tables below `variants/` as frozen dataclasses. `ffpa_build.spec` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DTYPES = ("bf16", "fp16")
ACCUMULATORS = ("f32", "f16")
# "merge" is what a kernel does that only follows another one.
PROBLEMS = ("prefill", "decode", "merge")
TOOLCHAIN_KINDS = ("nvrtc", "nvcc")
MAX_HEAD_DIM = 1024
HEAD_DIM_MULTIPLE = 8

ARCH_NAME = re.compile(r"sm_(\d+)([af]?)")


@dataclass(frozen=True)
class Arch:
    """A compile target. `capabilities` are those whose devices load its cubins."""

    name: str
    title: str
    capabilities: tuple[str, ...]
    min_cuda: str
    smem_block: int  # bytes of dynamic shared memory a block can opt in to
    features: tuple[str, ...]
    auto: tuple[str, ...]
    aliases: tuple[str, ...]

    @property
    def sm(self) -> int:
        """The number in the name: 80, 89, 90, 100, 120."""
        match = ARCH_NAME.fullmatch(self.name)
        assert match is not None  # checked when loaded
        return int(match[1])

    @property
    def suffix(self) -> str:
        """`a` (this capability only), `f` (its family) or nothing."""
        return self.name[-1] if self.name[-1] in "af" else ""

    @property
    def label(self) -> str:
        """The name as it stands in a version's local label."""
        return self.name.replace("_", "")


@dataclass(frozen=True)
class HeadDims:
    """The head dims that an impl can be compiled for: a range, or a list."""

    minimum: int
    maximum: int
    multiple: int
    values: tuple[int, ...] = ()

    def __contains__(self, head_dim: int) -> bool:
        if self.values:
            return head_dim in self.values
        return self.minimum <= head_dim <= self.maximum and head_dim % self.multiple == 0

    @property
    def largest(self) -> int:
        return max(self.values) if self.values else self.maximum // self.multiple * self.multiple

    def __str__(self) -> str:
        if self.values:
            return ", ".join(map(str, self.values))
        return f"multiples of {self.multiple} in {self.minimum}..{self.maximum}"


@dataclass(frozen=True)
class Rule:
    """Matches a set of an impl's variants; an empty tuple matches everything. `reason` says why the rule stands."""

    reason: str
    archs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    acc: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    features: tuple[str, ...] = ()  # any of them
    head_dim: HeadDims | None = None
    bytes: int = 0  # in `spills`: bytes allowed
    toolchains: tuple[str, ...] = ()  # in `spills`: the compilers that need them

    def matches(self, arch: str, dtype: str, acc: str, head_dim: int, stages: int, features: tuple[str, ...]) -> bool:
        return (
            (not self.archs or arch in self.archs)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.acc or acc in self.acc)
            and (not self.stages or stages in self.stages)
            and (not self.features or any(feature in features for feature in self.features))
            and (self.head_dim is None or head_dim in self.head_dim)
        )


@dataclass(frozen=True)
class Impl:
    """One kernel template of a family."""

    family: str
    name: str
    title: str
    ext: str
    header: str
    kernel: str
    recipe: str
    problems: tuple[str, ...]
    archs: tuple[str, ...]
    requires: tuple[str, ...]
    dtypes: tuple[str, ...]
    acc: tuple[str, ...]
    head_dim: HeadDims
    stages: tuple[int, ...]
    features: tuple[str, ...]
    exclusive: tuple[str, ...]
    spills: tuple[Rule, ...]
    skip: tuple[Rule, ...]
    memory_mib: int
    needs: tuple[str, ...] = ()  # names of impls of the family that launch after this one
    order: int = 0  # place among impls of one ext that serve the same call
    row_cost: int = 0  # per cent; 0: not weighed
    opt_in: str = ""  # the name that a selection has to opt in to; "" for kernels that every selection may have

    @property
    def id(self) -> str:
        return f"{self.family}.{self.name}"


MAX_WHEEL_MB = 100
"""The package index refuses larger files."""


@dataclass(frozen=True)
class Pack:
    """A wheel of kernels. `wheel_mb` is the size in megabytes that it must not exceed."""

    name: str
    distribution: str
    package: str
    title: str
    families: tuple[str, ...]
    archs: tuple[str, ...]
    wheel_mb: int = MAX_WHEEL_MB


@dataclass(frozen=True)
class Preset:
    """A named selection. `head_dims` is a name of `[head_dims]` or a list; `ext` is "all" or a list."""

    name: str
    title: str
    archs: tuple[str, ...]
    emulate: tuple[str, ...]
    ext: str | tuple[str, ...]
    head_dims: str | tuple[int, ...]
    dtypes: tuple[str, ...]
    acc: tuple[str, ...]
    stages: tuple[int, ...]
    features: tuple[str, ...]
    opt_in: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolchainSpec:
    """A pinned compiler. `library` is its folder below site-packages.

    Without `requirements` it is the program of that version on PATH, as conda and Nix bring it.
    `hashes` has the sha256 digests that a requirement's wheels may have, in the order of `requirements`.
    """

    name: str
    kind: str
    version: str
    requirements: tuple[str, ...]
    hashes: tuple[tuple[str, ...], ...]
    library: str
    default: bool

    @property
    def lock(self) -> Path:
        """Where the tree has the lock of the environment with it; for compilers of the package index."""
        return Path("ci", "locks", f"cuda{self.version.split('.')[0]}.txt")


@dataclass(frozen=True)
class Spec:
    """Everything below `variants/`, of the source tree at `root`."""

    root: Path
    archs: Mapping[str, Arch]
    impls: tuple[Impl, ...]
    packs: Mapping[str, Pack]
    head_dim_sets: Mapping[str, tuple[int, ...]]
    presets: Mapping[str, Preset]
    toolchains: Mapping[str, ToolchainSpec]
    aliases: Mapping[str, str] = field(repr=False)

    @property
    def csrc(self) -> Path:
        return self.root / "csrc"

    @property
    def exts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(impl.ext for impl in self.impls))

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature for impl in self.impls for feature in impl.features))

    @property
    def opt_ins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(impl.opt_in for impl in self.impls if impl.opt_in))

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(sorted({stage for impl in self.impls for stage in impl.stages}))

    @property
    def default_toolchain(self) -> ToolchainSpec:
        return next(toolchain for toolchain in self.toolchains.values() if toolchain.default)

    def arch(self, name: str) -> Arch:
        """The arch of a name or alias. Raises KeyError."""
        return self.archs[self.aliases[name]]

    def pack_of(self, family: str, arch: str) -> Pack:
        """The one pack that holds a family's kernels for an arch."""
        return next(pack for pack in self.packs.values() if family in pack.families and arch in pack.archs)

    @property
    def version(self) -> str:
        """The public version of every distribution."""
        return (self.root / "VERSION").read_text(encoding="utf-8").strip()


def version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
