"""Who this worker is, and as whom its sandboxes run."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandboxd.backends.image_user import ImageUser
from sandboxd.errors import EXIT_STATE, CreateFailed, StartupError

UID_FIRST: Final = 60_000
UID_COUNT: Final = 5_000
"""The range from which the sandboxes' uid is chosen: above what `useradd` and
systemd give out by default, and within 16 bits."""


def worker_id(state_dir: Path) -> str:
    """The worker's stable id, made at first use: labels carry it, never a process id."""
    return _remembered(state_dir / "worker-id", lambda: str(uuid.uuid4()), r"[0-9a-f-]{36}")


def sandbox_uid(state_dir: Path) -> int:
    """The uid (and gid) of `user = "auto"`: one that no host account has (security S2).

    Without root the daemon can give files to nobody else, so it is its own.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    taken = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
    path = state_dir / "session-uid"
    chosen = int(_remembered(path, lambda: str(_free(taken)), r"[0-9]{1,9}"))
    if chosen in taken:
        raise StartupError(
            f"uid {chosen} of the sandboxes now belongs to a host account; "
            f"end all sessions, then remove `{path}`",
            EXIT_STATE,
        )
    return chosen


def user_of(
    profile_user: str, image_user: ImageUser | None, auto: int, *, allow_root: bool
) -> tuple[int, int]:
    """Uid and gid as a profile's `user` says; `image_user` is asked for `image` alone.

    Raises `CreateFailed` for root without `allow_root`.
    """
    if profile_user == "auto":
        return auto, auto
    if profile_user == "image":
        assert image_user is not None
        uid, gid = image_user.uid, image_user.gid
    else:
        uid, gid = (int(part) for part in profile_user.split(":"))
    if uid == 0 and not allow_root:
        whose = "image" if profile_user == "image" else "profile"
        raise CreateFailed(
            "START_FAILED", f"the {whose}'s user is root, and the profile lacks `allow_root = true`"
        )
    return uid, gid


def _free(taken: set[int]) -> int:
    start = secrets.randbelow(UID_COUNT)
    for step in range(UID_COUNT):
        uid = UID_FIRST + (start + step) % UID_COUNT
        if uid not in taken:
            return uid
    raise StartupError(
        f"host accounts have every uid from {UID_FIRST} to {UID_FIRST + UID_COUNT - 1}", EXIT_STATE
    )


def _remembered(path: Path, make: Callable[[], str], pattern: str) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        text = make()
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fresh.write_text(text + "\n", encoding="ascii")
        # A link, not a rename: of two that start at once, both take the first one's.
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read `{path}`: {error}", EXIT_STATE) from None
    if not re.fullmatch(pattern, text):
        raise StartupError(f"`{path}` holds something else than it should", EXIT_STATE)
    return text
