"""The daemon's command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from sandboxd import __version__
from sandboxd.errors import EXIT_CONFIG, ConfigError, StartupError

try:
    from sandboxd import app, log
    from sandboxd.config import (
        DEFAULT_LISTEN,
        DEFAULT_METRICS,
        Settings,
        default_state_dir,
        load_settings,
    )
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] in ("sandboxd", "sandbox_adapter"):
        raise  # a fault of this program, not a missing extra
    print(
        f"sandboxd: error: `{missing.name}` is missing: install sandboxd[daemon]",
        file=sys.stderr,
    )
    raise SystemExit(EXIT_CONFIG) from None

_EXIT_CODES: Final = """\
exit codes:
  0  ended by SIGTERM or SIGINT, in order
  1  ended by a second signal, or by a fault of the program
  2  the flags or the settings are wrong
  3  an address cannot be listened on
  4  the container engine does not answer, or is too old
  5  an image that the daemon needs is missing
  6  the state folder is in use, unwritable, or of a newer version
  7  the settings ask for something unsafe without saying so
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_CONFIG, f"sandboxd: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code that `--help` documents."""
    options = _parser().parse_args(arguments)
    if options.command == "version":
        print(f"sandboxd {__version__}")
        return 0
    try:
        settings = load_settings(options.config, _overrides(options))
        log.configure(settings.log_level, settings.log_format)
        return _serve(settings)
    except (ConfigError, StartupError) as error:
        app.print_line(f"sandboxd: error: {error}")
        return error.exit_code


def _serve(settings: Settings) -> int:
    return asyncio.run(app.serve(settings, announce=app.print_line, warn=app.print_line))


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given: they win over the file."""
    names = ("listen", "metrics", "state_dir", "backend", "on_shutdown", "allow_unsafe_local")
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sandboxd",
        description="Runs the tool calls of agents in locked-down sandboxes, over gRPC.",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )
    serve = commands.add_parser(
        "serve",
        help="run the daemon",
        description="Runs the daemon until SIGTERM or SIGINT. A second signal forces the end.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help="settings, as TOML")
    serve.add_argument(
        "--listen",
        metavar="ADDR",
        help=f"HOST:PORT on loopback, or unix:PATH (default {DEFAULT_LISTEN})",
    )
    serve.add_argument(
        "--metrics",
        metavar="ADDR",
        help=f"HOST:PORT on loopback for Prometheus, or off (default {DEFAULT_METRICS})",
    )
    serve.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help=f"where sessions and the ledger are kept (default {default_state_dir()})",
    )
    serve.add_argument(
        "--backend",
        choices=("docker", "local"),
        help="how sandboxes are made (default docker); local isolates nothing",
    )
    serve.add_argument(
        "--on-shutdown",
        choices=("keep", "delete"),
        help="what becomes of live sessions: kept for the next daemon (default), or deleted",
    )
    serve.add_argument(
        "--allow-unsafe-local",
        action="store_true",
        default=None,
        help="permit --backend local, which runs commands as this user, unconfined",
    )
    commands.add_parser("version", help="print the version")
    return parser


if __name__ == "__main__":
    sys.exit(main())
