"""Changes of files with an expected version, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from sandboxd.guest.ops import Facts, Machine, OpError
from tests.unit.guest.direct import EDIT_BYTES_MAX, ask

Change: TypeAlias = Callable[[Machine, str, str | None], Facts]


def stat_of(machine: Machine, path: str, *, follow: bool = True) -> Facts:
    found: Facts = ask(machine, "stat", {"path": path, "follow": follow})[0]["stat"]
    return found


def write(machine: Machine, path: str, expected: str | None) -> Facts:
    return ask(machine, "write", {"path": path, "expected_version": expected}, b"new")[0]


def edit(machine: Machine, path: str, expected: str | None) -> Facts:
    args = {
        "path": path,
        "old_bytes": 3,
        "replace_all": False,
        "file_bytes_max": EDIT_BYTES_MAX,
        "expected_version": expected,
    }
    return ask(machine, "edit", args, b"oldnew")[0]


def upload(machine: Machine, path: str, expected: str | None, content: bytes = b"new") -> Facts:
    args = {"path": path, "make_parents": True, "expected_version": expected}
    handle = ask(machine, "upload_open", args)[0]
    ask(machine, "upload_append", handle, content)
    return ask(machine, "upload_commit", handle)[0]


CHANGES = [write, edit, upload]


def conflict(machine: Machine, change: Change, path: str, expected: str | None) -> None:
    with pytest.raises(OpError) as caught:
        change(machine, path, expected)
    assert caught.value.reason == "VERSION_CONFLICT"
    assert caught.value.text == (
        f"{path} is not at the expected version. Read it again before you change it."
    )
