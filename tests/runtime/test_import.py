"""Importing costs nothing and touches no CUDA. Each in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ffpa_attn


def run(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(Path(ffpa_attn.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_no_torch():
    assert run("import ffpa_attn, sys; print('torch' in sys.modules, ffpa_attn.__version__)").startswith("False ")


@pytest.mark.parametrize("module", ["manifest", "packs", "errors", "backends", "config"])
def test_submodules_work_without_torch(module):
    run(f"import sys; sys.modules['torch'] = None; import ffpa_attn.{module}")


def test_a_call_on_the_cpu_initialises_no_cuda_and_a_forked_child_can_still_do_so():
    code = """
import os, torch, ffpa_attn
q = torch.randn(1, 2, 8, 16)
ffpa_attn.ffpa_attn_func(q, q, q)
ffpa_attn.explain(q, q, q, backend="cuda")
ffpa_attn.installed_packs()
assert not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
print(os.waitpid(pid, 0)[1])
"""
    assert run(code) == "0"


def test_every_public_name_exists_and_others_do_not():
    assert run(
        "import ffpa_attn as f; print(all(hasattr(f, n) for n in f.__all__), set(f.__all__) <= set(dir(f)))"
    ) == ("True True")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ffpa_attn.nothing  # noqa: B018
