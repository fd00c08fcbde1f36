"""Debug dispatch: a variable of the environment names the kernel that calls of a family run.

`FFPA_FP16_FORCE_KERNEL=<kernel id>` stands for `CUDABackend(kernel="<kernel id>")` in every call that asks for CUDA
kernels, or for no backend, without quantisation; `FFPA_FP8_FORCE_KERNEL` and `FFPA_FP4_FORCE_KERNEL` in the quantised
ones. Only packs built with `--debug-ext` (`ENABLE_FFPA_BUILD_DEBUG`) obey: no variable changes what a release runs.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from .backends import Backend, CUDABackend
from .config import FORCE_VARIABLES, Config
from .packs import PackSet


def forced_backend(backend: Backend | None, config: Config, packs: PackSet) -> Backend | None:
    """The backend of a call with the forced kernel of its family; `backend` itself where nothing is forced.

    A kernel that the call names itself comes first. Raises ValueError when no pack holds the forced kernel.
    """
    if not config.forced or not packs.packs or not (backend is None or isinstance(backend, CUDABackend)):
        return backend
    cuda = CUDABackend() if backend is None else backend
    family = "fp8" if cuda.enable_fp8 else "fp4" if cuda.enable_fp4 else "fp16"
    kernel = dict(config.forced).get(family)
    if kernel is None or cuda.kernel is not None:
        return backend
    variable = FORCE_VARIABLES[family]
    obeying = [pack for pack in packs.packs if family in pack.manifest.debug]
    if not obeying:
        # the warnings module gives one text of one place once
        warnings.warn(
            f"{variable}={kernel!r} has no effect: no installed pack was built with --debug-ext {family} "
            "(ENABLE_FFPA_BUILD_DEBUG)",
            stacklevel=2,
        )
        return backend
    if not any(row.id == kernel for pack in obeying for row in pack.kernels):
        names = ", ".join(pack.name for pack in obeying)
        raise ValueError(f"{variable}={kernel!r}: no kernel of the packs built with --debug-ext {family}: {names}")
    return replace(cuda, kernel=kernel)
