"""Time the kernels of two `ffpa-core` wheels against each other on a GPU: built by two compilers, say.

    pip install --no-deps --target A first/ffpa_core-*.whl
    pip install --no-deps --target B second/ffpa_core-*.whl
    PYTHONPATH=A python ci/compare_wheels.py A B --json times.json

Both wheels' kernels run in one process, on A's runtime. They alternate, and each round begins with the other one, so
that a clock that drifts meets both. A line each call: medians over the rounds, and how far the results are apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from ffpa_attn import CUDABackend
from ffpa_attn.bench.timing import Budget, median_ms
from ffpa_attn.options import Options
from ffpa_attn.packs import PackSet, load
from ffpa_attn.routing import KernelRoute
from ffpa_attn.runtime import Runtime
from ffpa_attn.version import core_version

BUDGET = Budget(warmup_ms=20.0, measure_ms=80.0, min_calls=3, max_calls=200)
DEVICE = torch.device("cuda")
BACKENDS = {
    "auto": CUDABackend(),
    "native": CUDABackend(enable_tma=False, enable_cute=False),
    "tma": CUDABackend(enable_tma=True, enable_cute=False),
}


@dataclass(frozen=True)
class Case:
    """A call: which kernels are asked for, and the shape."""

    backend: str
    head_dim: int
    batch: int
    heads: int
    queries: int
    keys: int
    causal: bool = False


def cases(head_dims: list[int]) -> list[Case]:
    """Prefill with and without causal, by every family, and decode."""
    prefill = [
        Case(backend, dim, 1, 32 if dim < 512 else 16, 8192, 8192, causal)
        for dim in head_dims
        for backend in BACKENDS
        for causal in (False, True)
    ]
    return prefill + [Case("native", dim, 16, 8, 1, 32768) for dim in head_dims]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sites", type=Path, nargs=2, metavar="SITE", help="folder with the installed wheel")
    parser.add_argument("--D", default="128,512", help="head dims that both wheels have (default: 128,512)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where every time goes")
    options = parser.parse_args()
    packs = [load("core", site / "ffpa_pack_core", version=core_version()) for site in options.sites]
    runtimes = [Runtime(packs=PackSet((pack,))) for pack in packs]
    names = [f"{pack.manifest.compiler.name} {pack.manifest.compiler.version}" for pack in packs]
    print(f"A: {names[0]}   B: {names[1]}   {torch.cuda.get_device_name()}")
    print("| kernel | causal | A ms | B ms | B/A | rounds | max difference |\n|---|---|---|---|---|---|---|")
    rows, ratios = [], []
    for case in cases([int(dim) for dim in options.D.split(",")]):
        kernel, times, apart = measure(case, runtimes, options.rounds)
        a, b = (statistics.median(side) for side in times)
        rounds = sorted(second / first for first, second in zip(*times, strict=True))
        ratios.append(b / a)
        spread = f"{rounds[0]:.3f} to {rounds[-1]:.3f}"
        causal = "yes" if case.causal else "no"
        print(f"| `{kernel}` | {causal} | {a:.3f} | {b:.3f} | {b / a:.3f} | {spread} | {apart:.1e} |", flush=True)
        rows.append({"kernel": kernel, "causal": case.causal, "ms": times, "max_difference": apart})
    print(f"geometric mean of B/A: {statistics.geometric_mean(ratios):.4f}")
    if options.json:
        options.json.write_text(json.dumps({"compilers": names, "rows": rows}, indent=1), encoding="utf-8")


def measure(case: Case, runtimes: list[Runtime], rounds: int) -> tuple[str, list[list[float]], float]:
    """The kernel that the case runs, the times of each runtime a round, and the largest difference of the results."""
    torch.manual_seed(0)

    def tensor(length: int) -> torch.Tensor:
        return torch.randn(case.batch, case.heads, length, case.head_dim, dtype=torch.bfloat16, device=DEVICE)

    q, k, v = tensor(case.queries), tensor(case.keys), tensor(case.keys)
    options = Options(is_causal=case.causal, backend=BACKENDS[case.backend], strict=True)

    def call(runtime: Runtime) -> torch.Tensor:
        out = runtime.attention(q, k, v, options=options)
        assert isinstance(out, torch.Tensor)
        return out

    kernels = set()
    for runtime in runtimes:
        explained = runtime.explain(q, k, v, options=options)
        if not isinstance(explained.taken, KernelRoute):
            raise SystemExit(f"{case}: no kernel serves it:\n{explained}")
        kernels.add(explained.taken.kernel.id)
    if len(kernels) != 1:
        raise SystemExit(f"{case}: the wheels differ in what serves it: {', '.join(sorted(kernels))}")
    first, second = (call(runtime) for runtime in runtimes)
    apart = (first.float() - second.float()).abs().max().item()
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            times[side].append(median_ms(lambda side=side: call(runtimes[side]), DEVICE, BUDGET))  # type: ignore[misc]
    return kernels.pop(), times, apart


if __name__ == "__main__":
    main()
