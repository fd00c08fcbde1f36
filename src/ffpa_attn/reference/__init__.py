"""Attention in plain PyTorch: the oracle of the tests, the backend of machines without a GPU, and the readable
statement of what the kernels compute."""

from .attention import attention, logsumexp
from .dropout import keep_mask
from .online import merge, online_attention

__all__ = ["attention", "keep_mask", "logsumexp", "merge", "online_attention"]
