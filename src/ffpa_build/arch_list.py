"""TORCH_CUDA_ARCH_LIST, the list of compute capabilities that PyTorch's own extensions are built for."""

from __future__ import annotations

import re

from ffpa_build.errors import SelectionError
from ffpa_build.model import Spec

_ENTRY = re.compile(r"(?P<capability>\d+\.\d)[af]?(?P<ptx>\+PTX)?", re.IGNORECASE)
_NAMED = re.compile(r"(?P<name>[A-Za-z]+)(?P<ptx>\+PTX)?", re.IGNORECASE)
_NAMES = {"ampere": ("8.0", "8.6"), "ada": ("8.9",), "hopper": ("9.0",), "blackwell": ("10.0", "12.0")}
"""The names that PyTorch knows, of those that have kernels."""


def archs_of(spec: Spec, variable: str, text: str) -> tuple[tuple[str, ...], list[str]]:
    """The archs whose cubins run on the listed capabilities (`8.0;8.9 9.0a+PTX`), and notices.

    A capability without an arch of its own goes to the one that loads on it: 8.6 to sm_80. Raises SelectionError for an
    entry that is no capability of variants/archs.toml.
    """
    archs: list[str] = []
    ptx = False
    for entry in re.split(r"[;,\s]+", text.strip(";, \t\n")):
        match = _ENTRY.fullmatch(entry)
        if match is not None:
            capabilities: tuple[str, ...] = (match["capability"],)
        else:
            match = _NAMED.fullmatch(entry)
            capabilities = _NAMES.get(match["name"].lower(), ()) if match is not None else ()
        found = [_arch(spec, capability) for capability in capabilities]
        if match is None or not found or None in found:
            known = dict.fromkeys(capability for arch in spec.archs.values() for capability in arch.capabilities)
            raise SelectionError(
                f"{variable} = {text!r}: no kernels for {entry!r}; allowed: {', '.join(known)}, "
                f"{', '.join(name.capitalize() for name in _NAMES)}, each with or without +PTX. "
                "FFPA_BUILD_ARCH (--arch) comes before this variable"
            )
        archs += [arch for arch in found if arch is not None]
        ptx = ptx or match["ptx"] is not None
    notices = [f"{variable}: +PTX is left out, packs hold cubins and no PTX"] if ptx else []
    return tuple(dict.fromkeys(archs)), notices


def _arch(spec: Spec, capability: str) -> str | None:
    """The arch of this very capability, else the most specific one that loads on it."""
    if capability in spec.aliases:
        return spec.aliases[capability]
    serving = [arch for arch in spec.archs.values() if capability in arch.capabilities]
    return min(serving, key=lambda arch: (len(arch.capabilities), -arch.sm)).name if serving else None
