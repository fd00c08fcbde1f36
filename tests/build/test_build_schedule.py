"""The number of compiles at once comes from cores and memory."""

from __future__ import annotations

import os

import pytest

from ffpa_build import schedule
from ffpa_build.errors import SelectionError


@pytest.mark.parametrize(("free", "each", "cores", "jobs"), [(8000, 1000, 4, 4), (2500, 1000, 4, 2), (10, 1000, 4, 1)])
def test_pool_is_sized_from_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, free: int, each: int, cores: int, jobs: int
) -> None:
    monkeypatch.setattr(schedule, "available_mib", lambda: free)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert schedule.job_count(None, each) == jobs
    assert schedule.job_count(7, each) == 7


def test_zero_jobs_are_rejected() -> None:
    with pytest.raises(SelectionError, match="jobs = 0: allowed: 1 or more"):
        schedule.job_count(0, 100)
