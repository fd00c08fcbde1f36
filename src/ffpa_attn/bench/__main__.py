"""Entry point of ``python -m ffpa_attn.bench``."""

import sys

from ffpa_attn.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
