"""`python -m ffpa_build`."""

from ffpa_build.cli import main

if __name__ == "__main__":
    main()
