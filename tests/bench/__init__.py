"""Tests of ffpa_attn.bench that need no GPU."""
