"""The command line: `run` and `scripted-model`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import (
    EXIT_CODES,
    EXIT_COMPLETED,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    OrchestratorError,
    UsageError,
)

try:
    from orchestrator import app, log
    from orchestrator.config import MODEL_CALLS_DEFAULT, MODEL_CALLS_MAX, default_log, run_settings
    from orchestrator.terminal import Terminal
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] in ("orchestrator", "sandbox_adapter"):
        raise  # a fault of this program, not a missing extra
    print(
        f"orchestrator: error: `{missing.name}` is missing: install sandboxd[orchestrator]",
        file=sys.stderr,
    )
    raise SystemExit(EXIT_USAGE) from None

API_KEY_ENV = "MODEL_API_KEY"

_FLAGS = {
    "task": "TASK",
    "sandbox": "--sandbox",
    "model.name": "--model",
    "model.base_url": "--model-base-url",
    "model_calls_max": "--max-calls",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orchestrator",
        description="Lets a model work on a task with the tools of a sandbox.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="work on one task to its end",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("task", metavar="TASK", help="what to do, in plain words; `-` reads stdin")
    run.add_argument(
        "--sandbox",
        metavar="ADDR",
        default="127.0.0.1:50051",
        help="address of the sandbox daemon: HOST:PORT or unix:PATH (%(default)s)",
    )
    run.add_argument("--profile", default="", help="kind of sandbox (the daemon's default)")
    run.add_argument(
        "--workspace",
        metavar="DIR",
        type=Path,
        help="folder that is copied in, and whose changes are copied out",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="show what would be copied out, and write nothing"
    )
    run.add_argument(
        "--take-self-executing",
        action="store_true",
        help="also copy out files that run by themselves, such as .envrc or .vscode; never .git",
    )
    run.add_argument("--model", metavar="NAME", required=True, help="name of the model")
    run.add_argument(
        "--model-base-url",
        metavar="URL",
        required=True,
        help="what stands before /chat/completions",
    )
    run.add_argument(
        "--model-api-key-env",
        metavar="NAME",
        default=API_KEY_ENV,
        help="environment variable that holds the key, if any (%(default)s)",
    )
    run.add_argument(
        "--max-calls",
        metavar="N",
        type=int,
        default=MODEL_CALLS_DEFAULT,
        help=f"ceiling of model calls, 1 to {MODEL_CALLS_MAX} (%(default)s)",
    )
    run.add_argument(
        "--log",
        metavar="FILE",
        type=Path,
        default=default_log(),
        help="the log of conversations (%(default)s)",
    )
    scripted = commands.add_parser("scripted-model", help="serve a model that follows a script")
    scripted.add_argument(
        "--script",
        metavar="FILE",
        type=Path,
        required=True,
        help="JSON, or TOML where the name ends so",
    )
    scripted.add_argument(
        "--listen",
        metavar="ADDR",
        default="127.0.0.1:0",
        help="HOST:PORT; port 0 takes a free one (%(default)s)",
    )
    for command in (run, scripted):
        command.add_argument(
            "--log-level",
            choices=("debug", "info", "warning", "error"),
            default="warning",
            help="of the log on stderr (%(default)s)",
        )
    return parser


def _run_command(given: argparse.Namespace) -> Coroutine[Any, Any, int]:
    key = os.environ.get(given.model_api_key_env, "")
    if not key and given.model_api_key_env != API_KEY_ENV:
        raise UsageError(f"the environment variable `{given.model_api_key_env}` is not set")
    settings = run_settings(
        {
            "task": sys.stdin.read() if given.task == "-" else given.task,
            "sandbox": given.sandbox,
            "profile": given.profile,
            "workspace": given.workspace,
            "dry_run": given.dry_run,
            "log": given.log,
            "model": {
                "name": given.model,
                "base_url": given.model_base_url,
                "api_key": key or None,
            },
            "model_calls_max": given.max_calls,
            "files": {"take_self_executing": given.take_self_executing},
        },
        _FLAGS | {"model.api_key": given.model_api_key_env},
    )
    return app.run(settings, Terminal(sys.stdout, settings.log))


async def _with_signals(work: Coroutine[Any, Any, int], stopped: int) -> int:
    """Runs the work; SIGINT and SIGTERM end it with the exit code `stopped`."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if task.cancelling():
            print("orchestrator: forced to end; its session may be left", file=sys.stderr)
            os._exit(EXIT_INTERRUPTED)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if task.cancelled():
            return stopped
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = _parser().parse_args(arguments)
    log.configure(given.log_level)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        if given.command == "run":
            return asyncio.run(_with_signals(_run_command(given), EXIT_INTERRUPTED))
        # A server that is told to stop has done what it was for.
        serving = app.serve_script(given.script, given.listen)
        return asyncio.run(_with_signals(serving, EXIT_COMPLETED))
    except OrchestratorError as error:
        print(f"orchestrator: error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # the last line of defence: one line, one code
        print(f"orchestrator: internal error: {type(error).__name__}: {error}", file=sys.stderr)
        if given.log_level == "debug":
            raise
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(main())
