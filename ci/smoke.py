"""Run attention with the installed wheels and print each result's error against float64; 1 if any is too large.

On a machine with a GPU a call must be answered by a kernel of an installed pack, not by PyTorch's SDPA; a case whose
kernel no pack holds is named and left out, and at least one must run. Without a GPU the reference backend computes.
"""

from __future__ import annotations

import sys

import torch

import ffpa_attn

BOUND = {torch.bfloat16: 0.0030, torch.float16: 0.0004}
"""Largest error relative to the float64 result's own norm: rounding the output alone leaves 0.0017 in bf16 and 0.0002
in fp16, and a kernel rounds the weights for the second product too."""
LSE_BOUND = 1e-3
"""Largest absolute error of the log-sum-exp."""
CASES = (
    # head dim, query heads, key heads, queries, keys, causal
    (64, 4, 4, 512, 512, False),
    (128, 4, 2, 640, 768, True),
    (256, 2, 1, 512, 600, False),
    (512, 2, 2, 513, 777, True),
)


def float64_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp in float64; causal is aligned to the last query and the last key."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def main() -> int:
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    backend = ffpa_attn.CUDABackend() if gpu else ffpa_attn.ReferenceBackend()
    where = torch.cuda.get_device_name() if gpu else "no GPU: the reference computes"
    print(f"ffpa_attn {ffpa_attn.__version__}, torch {torch.__version__}, {where}")
    generator = torch.Generator(device).manual_seed(0)
    ran = bad = 0
    for head_dim, heads, kv_heads, queries, keys, causal in CASES:
        for dtype, bound in BOUND.items():
            q, k, v = (
                torch.randn(1, h, n, head_dim, generator=generator, device=device, dtype=dtype)
                for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
            )
            shape = f"D={head_dim} heads={heads}/{kv_heads} Nq={queries} Nkv={keys} {'causal' if causal else 'full'}"
            label = f"  {shape:<48} {str(dtype).removeprefix('torch.'):<9}"
            try:
                with torch.no_grad():
                    out, lse = ffpa_attn.ffpa_attn_func(
                        q,
                        k,
                        v,
                        is_causal=causal,
                        enable_gqa=heads != kv_heads,
                        backend=backend,
                        return_lse=True,
                        strict=gpu,
                    )
            except ffpa_attn.KernelNotFoundError as missing:
                print(f"{label} not installed: {missing}")
                continue
            ran += 1
            exact, exact_lse = float64_attention(q, k, v, causal)
            error = ((out.double() - exact).norm() / exact.norm()).item()
            lse_error = (lse.double() - exact_lse).abs().max().item()
            fine = error <= bound and lse_error <= LSE_BOUND
            bad += not fine
            verdict = "ok" if fine else f"TOO LARGE, allowed {bound} and {LSE_BOUND}"
            print(f"{label} error {error:.5f}  log-sum-exp {lse_error:.1e}  {verdict}")
    return 1 if bad or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
