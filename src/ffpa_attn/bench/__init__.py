"""Benchmarks of ffpa attention: ``python -m ffpa_attn.bench`` and ``python -m ffpa_attn.bench overhead``."""
