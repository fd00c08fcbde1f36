from __future__ import annotations

import pytest

from ffpa_attn.config import Config
from ffpa_attn.gates import Gates


def test_defaults_and_values():
    assert Config.from_environ({}) == Config(allow_small_d=True, strict=False)
    read = Config.from_environ({"FFPA_CUDA_ALLOW_SMALL_D": "0", "FFPA_STRICT": "True"})
    assert read == Config(allow_small_d=False, strict=True)
    assert Gates.from_config(read).allow_small_d is False


def test_another_value_is_named():
    with pytest.raises(ValueError, match=r"FFPA_STRICT='maybe': allowed are 1, true"):
        Config.from_environ({"FFPA_STRICT": "maybe"})
