"""The command: judges an adapter by the rules of the contract."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from sandbox_adapter import errors
from sandbox_adapter.conformance import access, differences, reports
from sandbox_adapter.conformance.access import Usage, credentials
from sandbox_adapter.conformance.catalogue import all_rules
from sandbox_adapter.conformance.expect import printable
from sandbox_adapter.conformance.rule import Rule
from sandbox_adapter.conformance.runner import JOBS_DEFAULT, Runner, selected
from sandbox_adapter.conformance.target import Target, TrackingClient
from sandbox_adapter.conformance.terminal import Terminal, show_list
from sandbox_adapter.connection import Credentials

EXIT_PASSED: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
CONNECT_S: Final = 30.0
"""Time that the adapter gets for its first answer, unless the caller says otherwise."""

EPILOG = """\
outcomes: `pass`, `fail`, `not claimed` (a capability that GetInfo does not list),
`uncheckable` (the sandbox lacks what the rule needs, such as a shell), `known
difference` and `no longer different` (see --known-differences).

exit codes: 0 every rule that could be judged passed or failed as listed; 1 a rule
failed, or a listed difference passes; 2 wrong usage; 3 the adapter does not answer.

The profile must give a writable working directory. Rules that could harm a machine
run only where the adapter claims ISOLATED.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sandbox_adapter.conformance",
        description="Judges an adapter by the rules of the contract sandbox_adapter.v1.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", metavar="ADDRESS", help="HOST:PORT or unix:PATH")
    parser.add_argument("--profile", default="", metavar="P", help="default: the adapter's default")
    parser.add_argument("--level", choices=("core", "full"), default="full", help="default: full")
    parser.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="ID",
        help="only rules with this id; * and ? are wildcards; may be repeated",
    )
    parser.add_argument(
        "--known-differences",
        type=Path,
        metavar="FILE",
        help="TOML: [[difference]] with rule and reason",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write JSON")
    parser.add_argument(
        "--jobs",
        type=int,
        default=JOBS_DEFAULT,
        metavar="N",
        help=f"rules judged at a time, 1 to 16; default: {JOBS_DEFAULT}",
    )
    parser.add_argument(
        "--connect-timeout",
        type=float,
        default=CONNECT_S,
        metavar="S",
        help=f"seconds that the adapter gets for its first answer; default: {CONNECT_S:.0f}",
    )
    parser.add_argument("--list", action="store_true", help="list the rules and judge nothing")
    access.add_flags(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        rules = _rules(options)
        if options.list:
            return _list(rules)
        if not options.target:
            raise Usage("--target is missing: give HOST:PORT or unix:PATH")
        shown = credentials(options)
        for path in (options.junit, options.json):
            _must_be_writable(path)
        known = {}
        if options.known_differences is not None:
            every = {rule.id for rule in all_rules()}
            known = dict(differences.load(options.known_differences, every))
        return asyncio.run(_run(options, rules, shown, known))
    except (Usage, differences.BadList) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return 130


def _rules(options: argparse.Namespace) -> list[Rule]:
    if not 1 <= options.jobs <= 16:
        raise Usage(f"--jobs must be from 1 to 16 (got {options.jobs})")
    level: Literal["core", "full"] = options.level
    rules = selected(all_rules(), level, options.select)
    if not rules:
        raise Usage("no rule has such an id at this level; see --list")
    return rules


def _list(rules: list[Rule]) -> int:
    show_list(sys.stdout, rules)
    return EXIT_PASSED


def _must_be_writable(path: Path | None) -> None:
    # Found out now: a report that cannot be written would lose a whole run.
    if path is None:
        return
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise Usage(f"cannot write `{path}`: {error.strerror}") from None


async def _run(
    options: argparse.Namespace, rules: list[Rule], shown: Credentials, known: dict[str, str]
) -> int:
    async with TrackingClient(options.target, credentials=shown) as client:
        try:
            info = await client.get_info(timeout_s=options.connect_timeout)
        except errors.AdapterError as error:
            said = printable(str(error))
            print(f"conformance: {options.target} does not answer: {said}", file=sys.stderr)
            return EXIT_UNREACHABLE
        offered = [profile.name for profile in info.profiles]
        if options.profile and options.profile not in offered:
            names = printable(", ".join(offered))
            raise Usage(f"no profile `{options.profile}`; offered: {names}")
        target = Target(client, info, options.profile)
        try:
            return await _judge(options, rules, target, known)
        finally:
            await target.close()
            for problem in target.problems:
                print(f"conformance: {problem}", file=sys.stderr)


async def _judge(
    options: argparse.Namespace, rules: list[Rule], target: Target, known: dict[str, str]
) -> int:
    started_at, begun = datetime.now(UTC), time.monotonic()
    runner = Runner(target, known, options.jobs)
    verdicts = []
    with Terminal(sys.stdout, len(rules), runner) as terminal:
        async for verdict in runner.run(rules):
            verdicts.append(verdict)
            terminal.show(verdict)
    run = reports.Run(
        target=options.target,
        profile=options.profile,
        level=options.level,
        info=target.info,
        started_at=started_at,
        seconds=time.monotonic() - begun,
        verdicts=verdicts,
    )
    if options.json is not None:
        reports.write_json(run, options.json)
    if options.junit is not None:
        reports.write_junit(run, options.junit)
    terminal.summary(run)
    return EXIT_PASSED if run.passed else EXIT_FAILED
