"""Timing and host-time measurement, with calls whose time is known."""

import gc
import time

import pytest
import torch

from ffpa_attn.bench import overhead, timing
from ffpa_attn.bench.clock import SmClock, median_mhz

CPU = torch.device("cpu")


def test_median_time_of_a_sleep_is_its_length():
    budget = timing.Budget(warmup_ms=1, measure_ms=10, min_calls=5, max_calls=5)
    assert 3.0 <= timing.median_ms(lambda: time.sleep(3e-3), CPU, budget) < 30.0


def test_number_of_calls_stays_within_the_budget():
    count = 0

    def call():
        nonlocal count
        count += 1

    timing.median_ms(call, CPU, timing.Budget(warmup_ms=1e9, measure_ms=1e9, min_calls=1, max_calls=7))
    assert count == 2 + 7 + 7


def test_a_rest_comes_before_the_warm_up_and_is_no_part_of_the_time():
    called = []
    budget = timing.Budget(warmup_ms=1, measure_ms=1, min_calls=3, max_calls=3, rest_s=0.05)
    measured = timing.measure(lambda: called.append(time.monotonic()), CPU, budget)
    gaps = [after - before for before, after in zip(called, called[1:], strict=False)]
    assert max(gaps) == gaps[1] >= 0.05  # after the two calls that say how long one takes
    assert measured.ms < 50.0 and measured.sm_mhz is None


def test_calls_that_are_long_beside_a_burst_rest_before_every_burst():
    spans = []

    def call():
        start = time.monotonic()
        time.sleep(0.01)
        spans.append((start, time.monotonic()))

    budget = timing.Budget(warmup_ms=1, measure_ms=25, min_calls=5, rest_s=0.05)
    timing.median_ms(call, CPU, budget)
    bursts = [[]]
    for span in spans[2:]:
        if bursts[-1] and span[0] - bursts[-1][-1][1] >= 0.05:
            bursts.append([])
        bursts[-1].append(span)
    assert sum(map(len, bursts)) == 5 and len(bursts) >= 3
    assert all(len(burst) <= 2 for burst in bursts)  # no warm-up, and at most 25 ms


class FakeNvml:
    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1500 + 10 * handle * kind


def test_the_clock_is_sampled_until_the_block_ends():
    clock = SmClock(CPU)
    clock._handle, clock._nvml = 7, FakeNvml()
    with clock.sampled() as samples:
        while len(samples) < 3:
            time.sleep(1e-3)
    count = len(samples)
    time.sleep(0.03)
    assert len(samples) == count and median_mhz(samples) == 1570.0
    with SmClock(CPU).sampled() as none:
        pass
    assert none == [] and median_mhz(none) is None


def test_subjects_take_turns_and_the_device_is_waited_for_between_batches_only():
    events = []
    subjects = {name: lambda name=name: events.append(name) for name in "ab"}
    overhead.host_times(subjects, lambda: events.append("s"), calls=3, batches=2)
    assert "".join(events) == "aaasbbbs" * (overhead.WARMUP_BATCHES + 2)


def test_waiting_for_the_device_is_not_host_time():
    subjects = {"sleep": lambda: time.sleep(1e-3)}
    host = overhead.host_times(subjects, lambda: time.sleep(5e-3), calls=3, batches=5)["sleep"]
    assert 1e3 <= host.median < 5e3


def test_garbage_collection_is_restored():
    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        overhead.host_times({"f": _fails_after(8)}, lambda: None, calls=2, batches=9)
    assert gc.isenabled()


def _fails_after(calls):
    left = iter(range(calls))

    def call():
        if next(left, None) is None:
            raise RuntimeError("worn out")

    return call


@pytest.mark.parametrize("argv", [["--D", "4"], ["--batches", "1"], ["--calls", "0"]])
def test_overhead_refuses_sizes_that_measure_nothing(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        overhead.main(argv)
    assert exit_.value.code == 2 and "must be at least" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the message on a machine without a GPU")
def test_overhead_without_a_gpu_says_that_it_needs_one(capsys):
    assert overhead.main([]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err
