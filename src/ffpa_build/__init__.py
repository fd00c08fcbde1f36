"""Builds the kernel packs of ffpa: declared variants -> translation units -> cubins -> manifest and wheel contents.

The public functions are in `ffpa_build.api`; the command line is `python -m ffpa_build`.
"""
