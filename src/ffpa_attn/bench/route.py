"""Which kernel a case really runs, asked of ``ffpa_attn.explain``."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from ffpa_attn.bench.cases import Case
from ffpa_attn.bench.subjects import call_options
from ffpa_attn.bench.tensors import Inputs


@dataclasses.dataclass(frozen=True)
class RouteTaken:
    """The kernel id, or the name of the other route with its reason."""

    kernel: str | None
    other: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """One cell of a table."""
        return self.kernel if self.kernel else str(self.other)


def route_of(inputs: Inputs, case: Case, backend: Any) -> RouteTaken:
    """The route of ``ffpa_attn_func`` on these inputs with this backend."""
    explanation = importlib.import_module("ffpa_attn").explain(
        inputs.q, inputs.k, inputs.v, backend=backend, **call_options(inputs, case)
    )
    return RouteTaken(explanation.kernel, explanation.route, explanation.reason)
