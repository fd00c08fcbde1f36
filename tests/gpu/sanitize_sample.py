"""A few small kernels to run under compute-sanitizer, each checked against float32.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/sanitize_sample.py
    compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/sanitize_sample.py auto

Arguments are families (auto, native, tma; default all). Sizes are the smallest that pass the route's gates. A sample
whose kernel no installed pack holds is named and left out, and so is one whose kernel another family ran already. Exits
with 1 when a result is wrong or nothing ran.
"""

from __future__ import annotations

import sys

import torch

from ffpa_attn import CUDABackend, explain, ffpa_attn_func

# name: (B, Hq, Hkv, Nq, Nkv, D), options
SAMPLES = {
    "tails of D and N": ((1, 1, 1, 515, 521, 40), {}),
    "causal": ((1, 2, 1, 512, 577, 64), {"is_causal": True}),
    "more tiles than blocks": ((1, 34, 34, 512, 512, 128), {"is_causal": True}),
    "head dim 320": ((1, 1, 1, 512, 515, 320), {}),
    "head dim 1000": ((1, 1, 1, 512, 515, 1000), {}),
    "decode": ((1, 4, 2, 3, 700, 72), {"is_causal": True}),
    "boolean mask": ((1, 2, 2, 512, 521, 64), {"mask": "bool"}),
    "additive mask": ((1, 2, 2, 512, 521, 64), {"mask": "additive"}),
    "mask, rows on 16 B": ((1, 2, 2, 512, 528, 64), {"mask": "additive"}),
    "the same, boolean": ((1, 2, 2, 512, 528, 256), {"mask": "bool"}),
    "the same, wide": ((1, 1, 1, 512, 528, 512), {"mask": "additive"}),
    "one row for all": ((1, 2, 2, 512, 528, 128), {"mask": "row"}),
    "dropout": ((1, 1, 1, 512, 521, 64), {"dropout_p": 0.5}),
}
TOLERANCE = 5e-3
FAMILIES = {
    "auto": CUDABackend(),
    "native": CUDABackend(enable_tma=False, enable_cute=False),
    "tma": CUDABackend(enable_tma=True, enable_cute=False),
}


@torch.no_grad()
def run(sizes, options, backend, known):
    """The kernel id, or None when no pack holds it, and the relative error: None with dropout or a `known` kernel."""
    batch, heads, kv_heads, q_len, kv_len, head_dim = sizes
    options = dict(options)
    q, k, v = (
        torch.randn(batch, h, n, head_dim, device="cuda", dtype=torch.bfloat16)
        for h, n in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    )
    kind = options.pop("mask", None)
    mask = torch.randn(q_len, kv_len, device="cuda", dtype=torch.bfloat16) if kind else None
    if kind == "bool":
        mask = mask > -1
    if kind == "row":
        mask = mask[:1]
    options |= {"attn_mask": mask, "enable_gqa": heads != kv_heads, "backend": backend}
    route = explain(q, k, v, **options)
    if route.kernel is None or route.kernel in known:
        return route.kernel, None
    out = ffpa_attn_func(q, k, v, strict=True, **options)
    torch.cuda.synchronize()
    if options.get("dropout_p"):
        return route.kernel, None
    k, v = (x.float().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    scores = q.float() @ k.mT / head_dim**0.5
    if kind == "bool":
        scores = scores.masked_fill(~mask, -torch.inf)
    elif kind:
        scores = scores + mask.float()
    if options.get("is_causal"):
        keep = torch.ones(q_len, kv_len, dtype=torch.bool, device="cuda").tril(kv_len - q_len)
        scores = scores.masked_fill(~keep, -torch.inf)
    expected = scores.softmax(-1) @ v
    return route.kernel, ((out.float() - expected).norm() / expected.norm()).item()


def main(families: list[str]) -> int:
    """Run every sample and print a line for each kernel."""
    torch.manual_seed(0)
    ran, wrong = 0, 0
    for name, (sizes, options) in SAMPLES.items():
        known: set[str] = set()
        for family in families or FAMILIES:
            kernel, error = run(sizes, options, FAMILIES[family], known)
            if kernel in known:
                continue
            print(f"{name:18} {family:7} {kernel or 'no installed kernel'}" + (f"  {error:.2e}" if error else ""))
            if kernel is not None:
                known.add(kernel)
                ran += 1
            wrong += error is not None and not error < TOLERANCE
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
