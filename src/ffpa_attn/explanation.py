"""What `explain` returns: the route of a call, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .packs import Pack, RejectedPack
from .problem import Problem
from .routing import Candidate, FallbackRoute, KernelRoute, ReferenceRoute, Route


@dataclass(frozen=True)
class Explanation:
    """The route that `ffpa_attn_func` takes for the same arguments. `str()` gives it as text.

    Attributes:
        problem: the call as it was understood.
        taken: KernelRoute, FallbackRoute or ReferenceRoute.
        packs: packs in use; `packs_rejected`: those turned away, with reasons.
        copies: what will be copied before the launch and why, one sentence each.
        error: what the call raises instead of running, or None.
    """

    problem: Problem
    taken: Route
    packs: tuple[Pack, ...]
    packs_rejected: tuple[RejectedPack, ...]
    copies: tuple[str, ...] = ()
    error: str | None = None

    @property
    def route(self) -> str:
        """ "kernel", "sdpa", "reference" or "error"."""
        if self.error is not None:
            return "error"
        if isinstance(self.taken, KernelRoute):
            return "kernel"
        return "reference" if isinstance(self.taken, ReferenceRoute) else "sdpa"

    @property
    def kernel(self) -> str | None:
        """The id of the kernel that runs, None on the other routes."""
        return self.taken.kernel.id if isinstance(self.taken, KernelRoute) else None

    @property
    def reason(self) -> str | None:
        """Why the call does not run on a kernel."""
        return self.taken.reason.text if isinstance(self.taken, FallbackRoute) else None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every kernel looked at, the chosen one first, with the reason why the others lost."""
        return self.taken.candidates

    def __str__(self) -> str:
        p = self.problem
        shape = f"B={p.batch} Hq={p.heads} Hkv={p.kv_heads} Nq={p.q_len} Nkv={p.kv_len} D={p.head_dim}"
        options = f"causal={p.is_causal} mask={p.mask_kind} dropout={p.dropout_p} scale={p.scale:g}"
        where = f"grad={p.needs_grad} lse={p.want_lse} on {p.device_type}:{p.device_index}"
        lines = [f"problem: {p.dtype} {shape} {options} {where}", f"route: {self._route_line()}"]
        lines += [f"copy: {text}" for text in self.copies]
        lines += [f"candidate: {c.kernel.id} [{c.pack}]: {c.lost or 'chosen'}" for c in self.candidates]
        lines += [
            f"pack: {pack.name} {pack.version}, {len(pack.kernels)} kernels, {' '.join(pack.archs)}"
            for pack in self.packs
        ]
        if not self.packs:
            lines.append("pack: none is installed")
        lines += [f"pack turned away: {r.name} {r.version}: {r.reason}" for r in self.packs_rejected]
        return "\n".join(lines)

    def _route_line(self) -> str:
        if self.error is not None:
            return f"error: {self.error}"
        if isinstance(self.taken, KernelRoute):
            return f"kernel {self.taken.kernel.id} of pack {self.taken.pack.name}"
        if isinstance(self.taken, FallbackRoute):
            return f"sdpa ({self.taken.reason.code}): {self.taken.reason.text}"
        return "reference"
