"""The guest's start: arguments, hardening, threads, then the daemon.

    guest --mode container|local --socket PATH --secret-file PATH --workdir DIR --home DIR
          [--root DIR] [--rg-argv JSON] [--search auto|ripgrep|grep] [--base-env JSON]
          [--user NAME]

`--root` (`local`): the session's folder; file ops refuse paths outside of it, and
the guest ends itself when it is gone. `--rg-argv`: the argv that starts ripgrep;
`--search`: the engine of searches, `auto` being ripgrep and else the image's grep.
`--base-env`: an object, the environment that commands inherit from the image; where
it is absent it is the guest's own, without what belongs to its interpreter.

A step that fails prints one line and exits with 1, before any hello.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from . import (
    edit,
    environment,
    feeds,
    files,
    harden,
    memory,
    places,
    polls,
    processes,
    protocol,
    run,
    search,
    search_probe,
    shells,
    tree,
    verbs,
)
from .children import CHILDREN
from .lanes import Lanes
from .link import Link
from .ops import Answer, Machine, Op, PollOp, Request
from .polls import POLLS

VERSION: Final = "0.1.0"
SECRET_BYTES_MAX: Final = 4096
THREAD_STACK_BYTES: Final = 512 * 1024
END_ROUNDS_MAX: Final = 100
"""Tries of a `local` guest to end what it started before it ends itself."""

# The interpreter's and the loader's own settings, none of a command's business.
_OWN_VARIABLES: Final = ("LC_ALL", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the guest. Returns only where it could not start."""
    try:
        _run(_arguments(argv))
    except (harden.NotHardened, OSError, ValueError) as error:
        print(f"guest: cannot start: {error}", file=sys.stderr, flush=True)
        return 1


def _run(arguments: argparse.Namespace) -> NoReturn:
    container = arguments.mode == "container"
    harden.default_signals(keep_ignored=not container)
    harden.no_core_dumps()
    harden.hold_oom_score()
    if container:
        harden.close()
        toolbox = os.path.dirname(os.path.abspath(sys.argv[0]))
        places.check(
            arguments.workdir, arguments.home, (toolbox, os.path.dirname(arguments.socket))
        )
        harden.check_maps(toolbox)
        places.make_writable()
    else:
        harden.become_subreaper()
        harden.keep_descriptors()
    machine = _machine(arguments)
    os.chdir(machine.workdir)
    secret = _read_secret(arguments.secret_file)
    memory.give_back_large_blocks()
    threading.stack_size(THREAD_STACK_BYTES)
    threading.excepthook = _end_with_thread
    lanes = Lanes(_ops())
    CHILDREN.open()
    lanes.start()
    run.start(machine)
    verbs.start()
    processes.start()
    POLLS.start()
    threading.Thread(
        target=_talk, args=(arguments, machine, lanes, secret), name="link", daemon=True
    ).start()
    CHILDREN.wait_for_ever()


def _talk(arguments: argparse.Namespace, machine: Machine, lanes: Lanes, secret: str) -> None:
    """The thread that reads the connection. In `local` it ends the process."""
    machine.shell = shells.find(machine)
    search_probe.settle_at_start(machine)
    hello = {
        "protocol": protocol.PROTOCOL_VERSION,
        "version": VERSION,
        "secret": secret,
        "pid": os.getpid(),
        "mode": machine.mode,
        "workdir": machine.workdir,
        "home": machine.home,
        "shell": machine.shell,
        "search": machine.engine_name,
        "maps_closed": machine.mode == "container",
        "spawning": lanes.spawning,
    }
    connection = Link(machine, lanes, arguments.socket, hello)
    connection.on_disconnect.append(verbs.drop_handles)
    watched = [os.path.dirname(arguments.socket), *([machine.root] if machine.root else [])]

    def give_up() -> bool:
        return machine.mode == "local" and not all(os.path.isdir(folder) for folder in watched)

    connection.run(give_up)
    _end_descendants()
    os._exit(0)


def _end_with_thread(fault: threading.ExceptHookArgs) -> None:
    """Ends the guest with any of its threads: without one of them it would only seem alive."""
    traceback.print_exception(fault.exc_type, fault.exc_value, fault.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="guest", allow_abbrev=False)
    parser.add_argument("--mode", choices=("container", "local"), required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--home", required=True)
    parser.add_argument("--root")
    parser.add_argument("--rg-argv", default="[]")
    parser.add_argument("--search", choices=search_probe.CHOICES, default="auto")
    parser.add_argument("--base-env")
    parser.add_argument("--user", default="sandbox")
    return parser.parse_args(argv)


def _machine(arguments: argparse.Namespace) -> Machine:
    rg = json.loads(arguments.rg_argv)
    if not isinstance(rg, list) or not all(isinstance(word, str) for word in rg):
        raise ValueError("`--rg-argv` must be a list of texts")
    if arguments.base_env is None:
        base_env = _without_own(os.environ)
    else:
        base_env = environment.environment_of(json.loads(arguments.base_env))
    return Machine(
        mode=arguments.mode,
        workdir=arguments.workdir,
        home=arguments.home,
        root=arguments.root,
        rg=rg,
        search=arguments.search,
        base_env=base_env,
        user=arguments.user,
    )


def _without_own(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _OWN_VARIABLES and not name.startswith("LD_")
    }


def _read_secret(path: str) -> str:
    with open(path, encoding="ascii") as file:
        secret = file.read(SECRET_BYTES_MAX).strip()
    if not secret:
        raise ValueError("the secret's file is empty")
    return secret


def _ping(request: Request) -> Answer:
    return {}, b""


def _ops() -> dict[str, Op | PollOp]:
    ops: dict[str, Op | PollOp] = {"ping": Op(_ping, "control")}
    for module in (environment, run, feeds, files, edit, verbs, search, processes, polls):
        ops |= module.OPS
    return ops


def _end_descendants() -> None:
    """Kills everything that came from this guest, in `local`, where nobody else does."""
    for _ in range(END_ROUNDS_MAX):
        table = tree.scan()
        below = tree.descendants(table, [os.getpid()]) - {os.getpid()}
        alive = [table[pid] for pid in below if table[pid].alive]
        if not alive:
            return
        for process in alive:
            tree.send(process, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
