"""`python -m sandbox_adapter.conformance`: see `command`."""

from __future__ import annotations

import sys


def main() -> int:
    """Exit code of the command; 2 as well where what the kit stands on is not installed."""
    try:
        from sandbox_adapter.conformance import command
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "sandbox_adapter":
            raise
        print(
            f"conformance: the Python module `{missing.name}` is not installed;"
            " from a checkout: pip install '.[conformance]'",
            file=sys.stderr,
        )
        return 2
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
