"""Runs ops in this process, as a worker thread of a guest would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sandboxd.guest import edit, files, verbs
from sandboxd.guest.ops import Answer, Facts, Machine, OpError, Request

OPS = {**files.OPS, **edit.OPS, **verbs.OPS}
READ = {"offset": 1, "lines_max": 2_000, "bytes_max": 51_200, "scan_s": 30}
EDIT_BYTES_MAX = 64 * 1024 * 1024


def machine_in(folder: Path, *, confined: bool = False) -> Machine:
    """A machine whose working directory and home lie in `folder`."""
    for name in ("workspace", "home"):
        (folder / name).mkdir(exist_ok=True)
    return Machine(
        mode="local" if confined else "container",
        workdir=str(folder / "workspace"),
        home=str(folder / "home"),
        root=str(folder) if confined else None,
    )


def ask(machine: Machine, op: str, args: Facts, body: bytes = b"") -> Answer:
    """Runs one op and gives its answer; raises its `OpError`."""
    return OPS[op].handler(Request(machine, op, args, body))


def read(machine: Machine, path: str, **args: Any) -> tuple[Facts, bytes]:
    return ask(machine, "read_lines", {**READ, "path": path, **args})


def edit_file(
    machine: Machine, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False
) -> Facts:
    old_raw = old.encode() if isinstance(old, str) else old
    new_raw = new.encode() if isinstance(new, str) else new
    args = {
        "path": path,
        "old_bytes": len(old_raw),
        "replace_all": replace_all,
        "file_bytes_max": EDIT_BYTES_MAX,
    }
    return ask(machine, "edit", args, old_raw + new_raw)[0]


def refusal(machine: Machine, op: str, args: Facts, body: bytes = b"") -> OpError:
    """The `OpError` of an op that must fail."""
    try:
        answer = ask(machine, op, args, body)
    except OpError as error:
        return error
    raise AssertionError(f"{op} answered {answer[0]}")
