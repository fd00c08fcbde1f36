"""`python -m ffpa_attn packs` and `python -m ffpa_attn info`."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence

from .driver import open_library, version
from .packs import GROUP, Pack, PackSet, discover
from .version import core_version


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 1 when a pack was turned away."""
    parser = argparse.ArgumentParser(prog="python -m ffpa_attn", description="What ffpa finds on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("packs", help="kernel packs, every cubin checked; packs turned away and why")
    commands.add_parser("info", help="versions, driver, devices and the packs that serve them")
    command = parser.parse_args(arguments).command
    packs = discover().verified()
    lines = pack_lines(packs) if command == "packs" else info_lines(packs)
    print("\n".join(lines))
    return 1 if packs.rejected else 0


def pack_lines(packs: PackSet) -> list[str]:
    """The packs as text."""
    lines = [f"ffpa-core {core_version()}"]
    if not packs.packs and not packs.rejected:
        lines.append(f"no kernel pack is installed (entry-point group {GROUP}); calls run on PyTorch's SDPA")
    for pack in packs.packs:
        lines.append(f"{pack.name}  {pack.distribution} {pack.version}  {len(pack.kernels)} kernels, cubins verified")
        lines += [f"  {arch}: {_arch_line(pack, arch)}" for arch in pack.archs]
    for rejected in packs.rejected:
        origin = f"{rejected.distribution} {rejected.version}".strip() or "unknown distribution"
        lines.append(f"{rejected.name}  {origin}  TURNED AWAY: {rejected.reason}")
    return lines


def info_lines(packs: PackSet) -> list[str]:
    """Versions and devices as text. Asks the CUDA driver for its devices."""
    lines = [f"python {platform.python_version()} on {platform.system()} {platform.machine()}"]
    try:
        import torch
    except ImportError as error:
        return [*lines, f"torch cannot be imported: {error}", *pack_lines(packs)]
    lines.append(f"torch {torch.__version__}, built for CUDA {torch.version.cuda or 'nothing (CPU only)'}")
    if torch.version.cuda is None or not torch.cuda.is_available():
        lines.append("no CUDA device: calls run on PyTorch's SDPA, or on the reference with backend='reference'")
        return [*lines, *pack_lines(packs)]
    lines.append("CUDA driver API {}.{}".format(*version(open_library())))
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        capability = f"{p.major}.{p.minor}"
        serving = [
            f"{pack.name} ({sum(capability in k.capabilities for k in pack.kernels)} kernels)"
            for pack in packs.packs
            if any(capability in k.capabilities for k in pack.kernels)
        ]
        lines.append(
            f"cuda:{index} {p.name}, compute capability {capability}, {p.total_memory >> 20} MiB: "
            f"{', '.join(serving) or 'no installed pack has kernels for it'}"
        )
    return [*lines, *pack_lines(packs)]


def _arch_line(pack: Pack, arch: str) -> str:
    kernels = [k for k in pack.kernels if k.arch == arch]
    families = ", ".join(sorted({k.family for k in kernels}))
    dims = ", ".join(str(d) for d in sorted({k.head_dim for k in kernels}))
    dtypes = ", ".join(sorted({k.dtype for k in kernels}))
    return f"{len(kernels)} kernels; {families}; {dtypes}; head dims {dims}"


if __name__ == "__main__":
    sys.exit(main())
