"""A sandbox's folder on the host.

    <state>/s/<resource_id>/
        run/              the guest's socket, and its secret until hello
        store/workspace/  working directory
        store/home/       home of the session's user
        store/tmp/        `local` only: temporary files
        passwd, group     `docker` only: the accounts inside
        process.json      `local` only: which process the guest is

What a session wrote is never walked by the daemon itself: an `rm` child with a
deadline removes it (security S10), after all mounts in there were let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxd.backends import mounts
from sandboxd.errors import SandboxdError

SECRET_NAME: Final = "secret"
REMOVE_S: Final = 1_800.0
"""Deadline of one `rm`. A session can make a tree so deep that the way down takes minutes,
and `rm` removes nothing before it is there: one that is ended early has achieved nothing."""
WAIT_S: Final = 60.0
"""How long somebody waits for a removal; it goes on behind them."""
JOIN_S: Final = 2.0
"""The same, for whoever finds the removal under way."""
_RESOURCE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_ERROR_CHARS_MAX: Final = 500


@dataclass(frozen=True)
class SessionFolder:
    """Paths of one sandbox. Making and removing them is all that this module does."""

    path: Path

    def is_there(self) -> bool:
        return os.path.lexists(self.path)

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def workspace(self) -> Path:
        return self.store / "workspace"

    @property
    def home(self) -> Path:
        return self.store / "home"

    @property
    def tmp(self) -> Path:
        return self.store / "tmp"

    @property
    def secret(self) -> Path:
        return self.run / SECRET_NAME

    @property
    def passwd(self) -> Path:
        return self.path / "passwd"

    @property
    def group(self) -> Path:
        return self.path / "group"

    @property
    def process(self) -> Path:
        return self.path / "process.json"

    def make(self, uid: int, gid: int, *, with_tmp: bool = False) -> None:
        """Makes what is missing; what an earlier generation left is kept.

        Only the top of the store belongs to the session. It is opened without
        following links before its owner is set: its parent is the daemon's.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.run.mkdir(mode=0o755, exist_ok=True)
        self.run.chmod(0o755)
        self.store.mkdir(mode=0o755, exist_ok=True)
        self.store.chmod(0o755)
        tops = [(self.workspace, 0o755), (self.home, 0o700)]
        if with_tmp:
            tops.append((self.tmp, 0o700))
        for top, mode in tops:
            with contextlib.suppress(FileExistsError):
                top.mkdir(mode=mode)
                _give(top, uid, gid, mode)

    def write_secret(self, secret: str, uid: int, gid: int) -> None:
        """Puts the secret where only the session's user can read it (security S18)."""
        with contextlib.suppress(FileNotFoundError):
            self.secret.unlink()
        handle = os.open(
            self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400
        )
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), uid, gid)

    def remove_secret(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.secret.unlink()

    async def remove(self) -> None:
        """Removes everything, in the end. Raises `SandboxdError` where something is left.

        Safe to repeat. A cancelled caller ends the child with it; see
        `SessionFolders.remove` for one that does not.
        """
        # Whatever is mounted in there, or lies there behind a loop device, would keep it.
        held = await asyncio.to_thread(mounts.detach, self.path.resolve())
        if not self.is_there():
            return
        why = await _run("rm", "-rf", "--one-file-system", "--", str(self.path))
        if self.is_there() and os.geteuid() != 0:
            # Folders without permissions stop everybody but root.
            await _run("chmod", "-R", "u+rwX", "--", str(self.path))
            why = await _run("rm", "-rf", "--one-file-system", "--", str(self.path))
        if self.is_there():
            why = "; ".join([*held, why])
            raise SandboxdError(
                "a sandbox's folder could not be removed", f"`{self.path}` is still there: {why}"
            )


class SessionFolders:
    """All folders of this state folder's sandboxes."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "s"
        self._removals: dict[str, asyncio.Task[None]] = {}

    def make_root(self) -> None:
        """Raises OSError. Nobody but the daemon's user (and the engine) may pass."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, resource_id: str) -> SessionFolder:
        """Raises ValueError where the id could name something else than a folder in here."""
        if not _RESOURCE_ID.match(resource_id):
            raise ValueError(f"`{resource_id[:80]}` is no resource id")
        return SessionFolder(self._root / resource_id)

    def could_be(self, resource_id: str) -> bool:
        """Whether the id can name a folder in here."""
        return _RESOURCE_ID.match(resource_id) is not None

    async def remove(self, resource_id: str) -> None:
        """Removes a folder, or waits a while for a removal that is under way.

        Raises `SandboxdError` where something is left or the removal takes longer;
        then it goes on, and repeating this joins it. Cancelling leaves it running.
        """
        removal = self._removals.get(resource_id)
        wait_s = WAIT_S if removal is None else JOIN_S
        if removal is None:
            removal = asyncio.create_task(self.of(resource_id).remove())
            self._removals[resource_id] = removal
            removal.add_done_callback(lambda _: self._removals.pop(resource_id, None))
        done, _ = await asyncio.wait({removal}, timeout=wait_s)
        if not done or removal.cancelled():
            raise SandboxdError(
                "a sandbox's folder is not removed yet",
                f"`{self.of(resource_id).path}` is not removed yet",
            )
        removal.result()

    async def stop(self) -> None:
        """Ends removals under way; the next daemon begins them anew."""
        removals = list(self._removals.values())
        for removal in removals:
            removal.cancel()
        await asyncio.gather(*removals, return_exceptions=True)

    def names(self) -> set[str]:
        """Resource ids of which a folder is there, or a mount or loop device in its place.

        Blocks for a moment.
        """
        try:
            names = {*os.listdir(self._root), *mounts.names_in_use(self._root.resolve())}
        except FileNotFoundError:
            return set()
        return {name for name in names if _RESOURCE_ID.match(name)}


def _give(path: Path, uid: int, gid: int, mode: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, mode)
        if os.geteuid() == 0:
            os.fchown(handle, uid, gid)
    finally:
        os.close(handle)


async def _run(*argv: str) -> str:
    """Runs a program to its end, at most REMOVE_S, and gives what it complained of."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stderr is not None
    try:
        async with asyncio.timeout(REMOVE_S):
            first = await child.stderr.read(_ERROR_CHARS_MAX)
            # The rest is read too, so that the child never waits for its reader.
            while await child.stderr.read(65_536):
                continue
            await child.wait()
    except TimeoutError:
        return f"`{argv[0]}` did not end within {REMOVE_S:.0f} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return first.decode("utf-8", "replace").strip()
