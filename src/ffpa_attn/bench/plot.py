"""A PNG of a sweep: TFLOP/s by head dim, one panel a task."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

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
    columns = min(3, max(1, len(panels)))
    lines = max(1, -(-len(panels) // columns))
    # The object interface: pyplot would pick a display backend and keep global state.
    figure = Figure(figsize=(4.6 * columns, 3.4 * lines + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, (label, dtype) in zip(axes, panels, strict=False):
        own = [row for row in rows if (row.case.label, row.case.dtype) == (label, dtype)]
        decode = own[0].case.q_len == 1
        for name in ("ffpa", "sdpa", *dict.fromkeys(peer for row in own for peer in row.peers)):
            points = [(row.case.head_dim, _rate(_of(row, name), decode)) for row in own]
            drawn = sorted((d, rate) for d, rate in points if rate is not None)
            if drawn:
                axis.plot(*zip(*drawn, strict=True), marker="o", label=name)
        axis.set(title=f"{label}, {own[0].case.shape}, {dtype}", xlabel="head dim")
        axis.set_ylabel("GB/s" if decode else "TFLOP/s")
        axis.set_ylim(bottom=0)
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(", ".join(environment[k] for k in ("device", "torch", "date") if k in environment), fontsize=10)
    figure.savefig(path, format="png", dpi=130)


def _of(row: Row, name: str) -> Result | None:
    return {"ffpa": row.ffpa, "sdpa": row.sdpa}.get(name) or row.peers.get(name)


def _rate(result: Result | None, decode: bool) -> float | None:
    if result is None:
        return None
    return result.gbps if decode else result.tflops
