"""A PNG of a sweep: TFLOP/s by head dim, one panel a task."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from ffpa_attn.bench.runner import Result, Row


class PlotUnavailableError(Exception):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    """Raise PlotUnavailableError, with the command that helps, before a long sweep rather than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotUnavailableError("--plot needs matplotlib: pip install matplotlib") from error


def save_plot(rows: Sequence[Row], environment: dict[str, str], path: pathlib.Path) -> None:
    """Write the plot to ``path`` as PNG, whatever its suffix. Decode panels show GB/s."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((row.case.label, row.case.dtype) for row in rows))
    names = list(dict.fromkeys(["ffpa", "sdpa", *(peer for row in rows for peer in row.peers)]))
    columns = min(3, max(1, len(panels)))
    lines = max(1, -(-len(panels) // columns))
    # The object interface: pyplot would pick a display backend and keep global state.
    figure = Figure(figsize=(4.6 * columns, 3.4 * lines + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, (label, dtype) in zip(axes, panels, strict=False):
        _draw(axis, [row for row in rows if (row.case.label, row.case.dtype) == (label, dtype)], names)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(", ".join(environment[k] for k in ("device", "torch", "date") if k in environment), fontsize=10)
    figure.savefig(path, format="png", dpi=130)


def _draw(axis: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    """One panel. Head dims stand at equal distances; a name has one colour in every panel."""
    case = rows[0].case
    decode = case.q_len == 1
    head_dims = sorted({row.case.head_dim for row in rows})
    for index, name in enumerate(names):
        rates = {row.case.head_dim: _rate(_of(row, name), decode) for row in rows}
        drawn = [(head_dims.index(d), rate) for d, rate in sorted(rates.items()) if rate is not None]
        if drawn:
            axis.plot(*zip(*drawn, strict=True), marker="o", color=f"C{index}", label=name)
    axis.set_title(f"{case.label}, {case.shape}, {case.dtype}", fontsize=9)
    axis.set_xticks(range(len(head_dims)), [str(d) for d in head_dims])
    axis.set_xlabel("head dim")
    axis.set_ylabel("GB/s" if decode else "TFLOP/s")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8)


def _of(row: Row, name: str) -> Result | None:
    return {"ffpa": row.ffpa, "sdpa": row.sdpa}.get(name) or row.peers.get(name)


def _rate(result: Result | None, decode: bool) -> float | None:
    if result is None:
        return None
    return result.gbps if decode else result.tflops
