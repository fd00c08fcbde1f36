"""The adapters of docs/usage.md, each run as it stands there. Packages that are not installed are stood in for."""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ffpa_attn import FFPAFallbackWarning, reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "usage.md"
TRANSFORMERS = importlib.util.find_spec("transformers") is not None


@pytest.fixture
def adapter(tmp_path):
    """What the snippet that defines this name defines."""

    def run(name):
        snippets = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        (snippet,) = (text for text in snippets if re.search(rf"^(def|class) {name}\b", text, re.MULTILINE))
        file = tmp_path / "snippet.py"
        file.write_text(snippet, encoding="utf-8")
        return runpy.run_path(str(file))[name]

    return run


def qkv(nq=6, nkv=9, heads=4, kv_heads=4, d=16):
    return (torch.randn(2, h, n, d) for h, n in ((heads, nq), (kv_heads, nkv), (kv_heads, nkv)))


def test_sdpa_calls_run_on_ffpa_and_keep_their_meaning(adapter, monkeypatch):
    mode = adapter("UseFFPA")
    q, k, v = qkv()
    mask = torch.rand(2, 1, 6, 9) > 0.4
    mask[:, :, 2] = False
    with mode():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        five = F.scaled_dot_product_attention(*(t[None] for t in (q, k, v)))
        doubled = torch.add(q, q)
    torch.testing.assert_close(out, reference.attention(q, k, v, mask, scale=0.3)[0])
    assert not out[:, :, 2].any()
    torch.testing.assert_close(causal, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    torch.testing.assert_close(five[0], F.scaled_dot_product_attention(q, k, v))
    assert torch.equal(doubled, 2 * q)
    calls = []
    monkeypatch.setitem(mode.attend.__globals__, "ffpa_attn_func", lambda *args, **options: calls.append(options))
    with mode():
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert calls == [{"enable_gqa": True}]


def test_sdpa_calls_have_gradients(adapter):
    q, k, v = (t.requires_grad_() for t in qkv())
    with adapter("UseFFPA")():
        out = F.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    assert all(t.grad is not None for t in (q, k, v))


@pytest.fixture
def transformers(monkeypatch):
    """What was registered, by registry."""
    registered = {}
    package = importlib.import_module("transformers") if TRANSFORMERS else types.ModuleType("transformers")
    for name in ("AttentionInterface", "AttentionMaskInterface"):
        stand_in = types.SimpleNamespace(register=lambda *entry, name=name: registered.update({name: entry}))
        monkeypatch.setattr(package, name, stand_in, raising=False)
    if not TRANSFORMERS:
        masks = types.ModuleType("transformers.masking_utils")
        masks.sdpa_mask = object()
        monkeypatch.setitem(sys.modules, "transformers", package)
        monkeypatch.setitem(sys.modules, "transformers.masking_utils", masks)
    return registered


def test_transformers_gets_its_layout_masks_and_causal_calls(adapter, transformers):
    attend = adapter("ffpa_attention")
    assert transformers["AttentionInterface"] == ("ffpa", attend)
    assert transformers["AttentionMaskInterface"] == ("ffpa", sys.modules["transformers.masking_utils"].sdpa_mask)
    q, k, v = qkv(kv_heads=2)
    module = types.SimpleNamespace(is_causal=True)
    mask = torch.rand(2, 1, 6, 9) > 0.4
    out, weights = attend(module, q, k, v, mask, scaling=0.3, dropout=0.0, sliding_window=None)
    assert weights is None and out.is_contiguous() and out.shape == (2, 6, 4, 16)
    torch.testing.assert_close(out.transpose(1, 2), reference.attention(q, k, v, mask, scale=0.3)[0])
    for options, causal in (({}, True), ({"is_causal": False}, False)):
        out, _ = attend(module, q, k, v, None, **options)
        torch.testing.assert_close(out.transpose(1, 2), reference.attention(q, k, v, is_causal=causal)[0])
    one, _ = attend(module, q[:, :, :1], k, v, None)
    torch.testing.assert_close(one.transpose(1, 2), reference.attention(q[:, :, :1], k, v)[0])
    with pytest.raises(ValueError, match="no softcap"):
        attend(module, q, k, v, None, softcap=30.0)


@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.filterwarnings(f"ignore::{FFPAFallbackWarning.__module__}.{FFPAFallbackWarning.__name__}")
@torch.no_grad()
def test_a_model_of_transformers_computes_the_same(adapter):
    from transformers import LlamaConfig, LlamaModel

    adapter("ffpa_attention")
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    tokens, padding = torch.randint(50, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    padding[0, :3] = 0
    outs = []
    for implementation in ("ffpa", "eager"):
        torch.manual_seed(0)
        config._attn_implementation = implementation
        model = LlamaModel(config).eval()
        prefill = model(tokens, attention_mask=padding, use_cache=True)
        step = model(
            tokens[:, :1],
            attention_mask=torch.cat((padding, padding[:, -1:]), 1),
            past_key_values=prefill.past_key_values,
        )
        outs.append((prefill.last_hidden_state[:, 3:], step.last_hidden_state, model(tokens).last_hidden_state))
    for got, want in zip(*outs, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("mask", [None, (6, 9), (2, 6, 9), (2, 1, 6, 9)])
def test_comfyui_gets_its_layouts_and_masks(adapter, reshaped, kept, mask):
    q, k, v = qkv()
    mask = None if mask is None else torch.randn(mask)
    given = (q, k, v) if reshaped else tuple(t.transpose(1, 2).flatten(2) for t in (q, k, v))
    options = {"skip_reshape": reshaped, "skip_output_reshape": kept, "transformer_options": {}}
    out = adapter("ffpa_override")(None, *given, 4, mask=mask, **options)
    full = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    want = reference.attention(q, k, v, full)[0]
    torch.testing.assert_close(out, want if kept else want.transpose(1, 2).flatten(2))
