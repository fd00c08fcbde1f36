"""`python -m ffpa_build`."""

import sys

try:
    from ffpa_build.cli import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] in ("ffpa_build", "ffpa_attn"):
        raise
    sys.exit(
        f"error: {sys.executable} has no module {error.name!r}; install what builds need: "
        "python -m pip install --group build (pip 25.1 or newer, in the source tree)"
    )

if __name__ == "__main__":
    main()
