"""Time of one call: CUDA events on a GPU, the wall clock on a CPU; warm-up first, then the median."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

from ffpa_attn.bench.clock import SmClock, median_mhz

# A batch stays below the depth of the driver's launch queue (1024 entries), at which the host would have to wait.
BATCH_CALLS = 64
HOST_CYCLES_A_CALL = 200_000  # of the device's clock: some 100 us, more than any measured call takes to enqueue


@dataclasses.dataclass(frozen=True)
class Budget:
    """Milliseconds spent on warming up and on measuring a case, the bounds on the number of timed calls, and seconds
    of idleness before, in which a card cools down."""

    warmup_ms: float = 100.0
    measure_ms: float = 300.0
    min_calls: int = 5
    max_calls: int = 500
    rest_s: float = 0.0


FULL = Budget()
QUICK = Budget(warmup_ms=25.0, measure_ms=75.0, min_calls=3)


def rested(seconds: float) -> Budget:
    """So little work after a rest that a card keeps its highest clock: what one call among others' work can have."""
    return Budget(warmup_ms=5.0, measure_ms=25.0, min_calls=5, rest_s=seconds)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Median milliseconds of a call, and the median clock of the multiprocessors meanwhile where it can be read."""

    ms: float
    sm_mhz: float | None


def measure(call: Callable[[], object], device: torch.device, budget: Budget = FULL) -> Timing:
    """``median_ms`` with the clock beside it."""
    with SmClock(device).sampled() as samples:
        samples_before = 0

        def start() -> None:
            nonlocal samples_before
            samples_before = len(samples)

        ms = median_ms(call, device, budget, start)
    return Timing(ms, median_mhz(samples[samples_before:]))


def median_ms(
    call: Callable[[], object],
    device: torch.device,
    budget: Budget = FULL,
    when_warm: Callable[[], None] = lambda: None,
) -> float:
    """Median time of ``call`` in milliseconds: device time on CUDA, host time on the CPU. ``when_warm`` is called
    between the warm-up and the timed calls."""
    one = _first_ms(call, device)
    if budget.rest_s > 0:
        time.sleep(budget.rest_s)
    for _ in range(_calls(budget.warmup_ms, one, 1, budget.max_calls)):
        call()
    calls = _calls(budget.measure_ms, one, budget.min_calls, budget.max_calls)
    when_warm()
    if device.type == "cuda":
        return statistics.median(_device_times(call, calls, device))
    return statistics.median(_host_ms(call) for _ in range(calls))


def _device_times(call: Callable[[], object], calls: int, device: torch.device) -> list[float]:
    """Times of ``calls`` calls by events.

    The device is kept busy while the host enqueues a batch, so that an event never waits for the host: without that,
    a call shorter than its own launch would be timed as the launch.
    """
    times: list[float] = []
    while len(times) < calls:
        batch = min(BATCH_CALLS, calls - len(times))
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(batch)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(batch)]
        torch.cuda._sleep(batch * HOST_CYCLES_A_CALL)
        for start, end in zip(starts, ends, strict=True):
            start.record()
            call()
            end.record()
        torch.cuda.synchronize(device)
        times += [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]
    return times


def _first_ms(call: Callable[[], object], device: torch.device) -> float:
    """Time of the second call, by the wall clock: the first one loads code."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max((time.perf_counter() - start) * 1e3, 1e-3)


def _calls(target_ms: float, one_ms: float, least: int, most: int) -> int:
    return max(least, min(most, int(target_ms / one_ms)))


def _host_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
