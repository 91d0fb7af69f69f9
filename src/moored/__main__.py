"""``python -m moored``, the same command line as ``moored``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from moored.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
