"""Which program searches contents: found out once, by trying it.

A program is believed for what it does, not for what it is called: an image may hold
a wrapper, an alias or something else under the name. What was cut off by time or a
cancel is not kept: the next search asks again (tool-cases G38).
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from . import environment, search_child
from .ops import Machine, OpError, Request
from .posix_grep import PosixGrep
from .posix_search import Grep
from .ripgrep import PROBED, Ripgrep
from .search_child import Budget
from .search_engine import Engine

CHOICES: Final = ("auto", "ripgrep", "grep")
PROBE_S: Final = 5.0
"""Of all tries together."""
TRIES_MAX: Final = 3
"""Probes that time cut off, before an engine that was found besides is the one."""
OUTPUT_BYTES_MAX: Final = 4 * 1024
FOLDERS: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin")
"""Looked into besides the folders of PATH."""
FOLDERS_MAX: Final = 32
_INPUT: Final = b"a1{x\n\xc3\xa9b\nplain text\n"
_FOUND: Final = b"<stdin>\x003\x002\x009\x00plain text\n"
_RIPGREP: Final = re.compile(r"ripgrep \d[\w.+-]{0,40}")
_GNU: Final = re.compile(r"grep \(GNU grep[^)]{0,40}\) [\w.-]{1,40}")
_BUSYBOX: Final = re.compile(r"BusyBox v[\w.-]{1,40}")


class _Unsettled(Exception):
    """Time or a cancel ended a try."""


def settle(machine: Machine, budget: Budget) -> None:
    """Fills in the machine's engine, unless time or a cancel leaves it open."""
    found: tuple[Engine, str] | None = None
    unsettled = False
    for choice, probe in (("ripgrep", _ripgrep), ("grep", _any_grep)):
        if found is None and machine.search in ("auto", choice):
            try:
                found = probe(machine, budget)
            except _Unsettled:
                unsettled = True
    if unsettled and not budget.cancelled:
        machine.engine_tries += 1
    if found is None and unsettled:
        return
    machine.engine, machine.engine_name = found or (None, None)
    # What was cut off may be the better one: the next searches ask again, some times.
    machine.engine_settled = not unsettled or machine.engine_tries >= TRIES_MAX


def settle_at_start(machine: Machine) -> None:
    """The same before there is any request."""
    settle(machine, Budget(Request(machine, "search", {}), PROBE_S))


def engine_of(request: Request, budget: Budget) -> Engine:
    """The engine of the machine. Raises SEARCH_UNAVAILABLE."""
    machine = request.machine
    if not machine.engine_settled:
        settle(machine, budget.shortened(PROBE_S))
    engine: Engine | None = machine.engine
    if engine is None:
        wanted = {"ripgrep": "ripgrep", "grep": "grep"}.get(machine.search, "ripgrep and no grep")
        raise OpError(
            "SEARCH_UNAVAILABLE",
            f"This sandbox has no {wanted} that works. Use glob to find files by name and read "
            "to look into them.",
        )
    return engine


def _ripgrep(machine: Machine, budget: Budget) -> tuple[Engine, str] | None:
    if not machine.rg:
        return None
    code, said = _try([*machine.rg, "--version"], budget.shortened(PROBE_S / 2))
    version = _RIPGREP.match(said.decode("utf-8", "replace"))
    if code != 0 or version is None:
        return None
    # A name and a number is what any wrapper prints: only a search shows that it can.
    argv = [*machine.rg, *PROBED, "--max-count", "2", "-e", "l.in", "--", "-"]
    if _try(argv, budget.shortened(PROBE_S / 2)) != (0, _FOUND):
        return None
    return Ripgrep(machine.rg, machine.workdir), version[0]


def _any_grep(machine: Machine, budget: Budget) -> tuple[Engine, str] | None:
    unsettled = False
    for argv in _candidates(machine.base_env.get("PATH", environment.PATH_DEFAULT)):
        try:
            grep = _grep(argv, budget)
        except _Unsettled:
            # Perhaps only this one hangs.
            unsettled = True
            continue
        if grep is not None:
            return PosixGrep(grep, machine.workdir), grep.name
    if unsettled:
        raise _Unsettled
    return None


def _candidates(path: str) -> Iterator[tuple[str, ...]]:
    """Programs that may be a grep, each once: those of PATH first, which commands would use."""
    seen: set[str] = set()
    folders = [folder for folder in path.split(":") if folder.startswith("/")][:FOLDERS_MAX]
    for name, words in (("grep", ()), ("busybox", ("grep",))):
        for folder in (*folders, *FOLDERS):
            program = os.path.join(folder, name)
            try:
                mode = os.stat(program).st_mode
            except OSError:
                continue
            if program not in seen and stat.S_ISREG(mode) and os.access(program, os.X_OK):
                seen.add(program)
                yield (program, *words)


def _grep(argv: Sequence[str], budget: Budget) -> Grep | None:
    """The program, if it does all that is asked of it."""
    budget = budget.shortened(PROBE_S / 2)
    this = os.path.realpath(sys.argv[0])
    wide = os.fsdecode(b"^[\xc2-\xf4][\x80-\xbf]+b")
    wanted: list[tuple[list[str], int, bytes]] = [
        (
            ["-n", "-E", "-e", "^(a|b)[0-9]{1,2}\\{x\r*$", "-e", "text"],
            0,
            b"1:a1{x\n3:plain text\n",
        ),
        (["-c", "-E", "-e", wide], 0, b"1\n"),
        (["-c", "-F", "-e", "1{"], 0, b"1\n"),
        (["-n", "-o", "-E", "-e", "[a-n]+ "], 0, b"3:lain \n"),
        (["-q", "-E", "-e", "A1"], 1, b""),
        (["-q", "-E", "-e", "a1"], 0, b""),
        (["-l", "-E", "-e", "__main__", "--", this, os.devnull], 0, os.fsencode(this) + b"\n"),
    ]
    for options, code, output in wanted:
        if _try([*argv, *options], budget) != (code, output):
            return None
    known: set[str] = set()
    for option, more, output in (
        ("-a", ["-a", "-c"], b"1\n"),
        ("-b", ["-n", "-o", "-b"], b"3:10:lain\n"),
        ("-D", ["-c", "-D", "skip"], b"1\n"),
    ):
        if _try([*argv, *more, "-E", "-e", "l.in"], budget) == (0, output):
            known.add(option)
    return Grep(tuple(argv), _name(argv, budget), frozenset(known))


def _name(argv: Sequence[str], budget: Budget) -> str:
    said = _try([*argv, "--version"], budget, errors=True)[1].decode("utf-8", "replace")
    if (gnu := _GNU.search(said)) is not None:
        return gnu[0]
    busybox = _BUSYBOX.search(said)
    return "grep (POSIX)" if busybox is None else f"grep ({busybox[0]})"


def _try(argv: Sequence[str], budget: Budget, *, errors: bool = False) -> tuple[int | None, bytes]:
    """Exit code and output, with that on stderr if asked. Raises `_Unsettled`."""
    said = bytearray()

    def keep(data: bytes) -> bool:
        said.extend(data[: OUTPUT_BYTES_MAX - len(said)])
        return len(said) < OUTPUT_BYTES_MAX

    text = os.memfd_create("probe", os.MFD_CLOEXEC)
    try:
        os.write(text, _INPUT)
        os.lseek(text, 0, os.SEEK_SET)
        ended = search_child.run(argv, budget, keep, keep if errors else _ignored, stdin=text)
    except OpError as error:
        if error.facts.get("exhausted"):
            raise _Unsettled from None
        return None, b""
    finally:
        os.close(text)
    if budget.over:
        raise _Unsettled
    return ended.exit_code, bytes(said)


def _ignored(_: bytes) -> bool:
    return True
