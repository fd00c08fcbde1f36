"""Every test here needs a CUDA device; kernels that the installed packs lack are skipped with that reason."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    here = [item for item in items if "tests/gpu/" in item.path.as_posix()]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def dtype(request):
    return request.param


@pytest.fixture(autouse=True)
def release_memory():
    """Give back what a large test took, so that the order of the tests does not decide what fits."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2**33:
        torch.cuda.empty_cache()
