"""Tests of the public API on a GPU, with the kernel wheels installed."""
