"""``python -m moored``, the same command line as ``moored``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    if not sys.flags.safe_path:
        # It was the current folder (python -m) or the one of the moored script: what lies there under the
        # name of one of our dependencies is not ours. A traced program gets its own entry in this place.
        sys.path[0] = os.path.dirname(os.__file__)
    from moored.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
