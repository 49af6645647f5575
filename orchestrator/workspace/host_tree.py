"""The workspace on the host, reached only through descriptors of its own directories.

Every step of every path is opened with O_NOFOLLOW below the descriptor before it, so
no link, old or new, can lead an operation outside. All methods block; async code
calls them in a thread.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from orchestrator.errors import WorkspaceError
from orchestrator.workspace.names import Parts, shown, steps

PIECE_BYTES: Final = 256 * 1024

TAKEN: Final = "the host has something else at this place"
"""Why nothing is put where something is: it came meanwhile, or never went into the sandbox."""

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took the place of a file must not hang the run.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class HostEntry:
    """What is at a path of the host."""

    kind: Literal["file", "directory", "link", "special"]
    size: int = 0
    mode: int = 0
    digest: str = ""
    """SHA-256 of a file's content, where it was read."""
    target: str = ""
    """Of a link."""

    def same_content(self, other: HostEntry | None) -> bool:
        """True where both are the same thing with the same content; modes may differ."""
        return (
            other is not None
            and self.kind == other.kind
            and self.digest == other.digest
            and self.target == other.target
        )


class HostConflict(Exception):
    """The host is not as it was when it was copied in; nothing was changed."""


class Staged:
    """A new file or link beside its place, not yet visible under its name."""

    def __init__(self, directory: int, name: str, descriptor: int | None) -> None:
        self._directory = directory
        self._name = name
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest() if self._descriptor is not None else ""

    def write(self, piece: bytes) -> None:
        """Appends to the file."""
        if self._descriptor is None:
            raise ValueError("a link has no content")
        view = memoryview(piece)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._hash.update(piece)
        self.size += len(piece)

    def finish(self, mode: int) -> None:
        """Makes the content durable, with its permission bits."""
        if self._descriptor is not None:
            os.fchmod(self._descriptor, mode & 0o777)
            os.fsync(self._descriptor)

    def publish(self, final: str, *, replaces: bool) -> None:
        """Puts it under its name: over what is there, or only where nothing is."""
        here = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
        if replaces:
            os.rename(self._name, final, **here)
            self._name = ""
        else:
            try:
                # A hard link fails where a rename would silently replace.
                os.link(self._name, final, **here, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                os.rename(self._name, final, **here)
                self._name = ""
        os.fsync(self._directory)

    def close(self) -> None:
        """Removes what was not published and gives the descriptors back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._name:
            os.unlink(self._name, dir_fd=self._directory)
            self._name = ""
        os.close(self._directory)


class HostTree:
    """A folder of the host. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        try:
            # The folder itself may be reached through links: the person named it.
            self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(
                f"cannot open the workspace `{folder}`: {error.strerror}"
            ) from None
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    # --- Looking -------------------------------------------------------------

    def walk(self) -> Iterator[tuple[bytes, HostEntry]]:
        """Everything in the folder, a directory before what it holds. Reads no content.

        Names come as the file system has them.
        """
        pending: list[Parts] = [()]
        while pending:
            parts = pending.pop()
            with self._directory(parts) as directory:
                names = sorted(os.listdir(directory), key=os.fsencode)
                found = [(name, self._look(directory, name)) for name in names]
            for name, entry in found:
                if entry is None:
                    continue
                here = (*parts, name)
                yield os.fsencode("/".join(here)), entry
                if entry.kind == "directory":
                    pending.append(here)

    def state(self, parts: Parts) -> HostEntry | None:
        """What is at a path now, a file with its digest. None: nothing is there.

        Raises `HostConflict` where something on the way is no directory.
        """
        try:
            with self._directory(parts[:-1]) as directory:
                entry = self._look(directory, parts[-1])
                if entry is None or entry.kind != "file":
                    return entry
                digest = hashlib.sha256()
                with self._open(directory, parts[-1]) as file:
                    while piece := file.read(PIECE_BYTES):
                        digest.update(piece)
                return HostEntry("file", entry.size, entry.mode, digest.hexdigest())
        except FileNotFoundError:
            return None

    def refuse_detour(self, parts: Parts, target: str, going: Collection[Parts] = ()) -> None:
        """Raises `HostConflict` where a link's target leads through a link of the host's.

        That one could lead anywhere: it may be one that never went into the sandbox. What
        is below a place in `going` will be gone by the time that the link is made.
        """
        for place in steps(parts, target):
            if not place or any(place[:depth] in going for depth in range(1, len(place) + 1)):
                continue
            try:
                with self._directory(place[:-1]) as directory:
                    entry = self._look(directory, place[-1])
            except (FileNotFoundError, HostConflict):
                continue
            if entry is not None and entry.kind == "link":
                raise HostConflict("it is a link that leads through a link of the host's own")

    def open_file(self, parts: Parts) -> BinaryIO:
        """A regular file for reading."""
        with self._directory(parts[:-1]) as directory:
            return self._open(directory, parts[-1])

    # --- Changing ------------------------------------------------------------

    def stage_file(self, parts: Parts) -> Staged:
        """Begins a file beside its place."""
        with self._directory(parts[:-1]) as directory:
            name = f".incoming-{secrets.token_hex(8)}"
            descriptor = os.open(name, _NEW, 0o600, dir_fd=directory)
            return Staged(os.dup(directory), name, descriptor)

    def stage_link(self, parts: Parts, target: str) -> Staged:
        """Makes a link beside its place. Raises `HostConflict` as `refuse_detour` does."""
        self.refuse_detour(parts, target)
        with self._directory(parts[:-1]) as directory:
            name = f".incoming-{secrets.token_hex(8)}"
            os.symlink(target, name, dir_fd=directory)
            return Staged(os.dup(directory), name, None)

    def commit(
        self, staged: Staged, parts: Parts, expected: HostEntry | None, mode: int | None
    ) -> None:
        """Puts a staged file or link in its place, if that still is as `expected`.

        Nothing is done where the same content is there already.

        `mode` None keeps that of the file that is replaced.
        """
        current = self.state(parts)
        if current is not None and current.kind == "file" and current.digest == staged.digest:
            return
        self._expect(current, expected)
        wanted = current.mode if mode is None and current is not None else mode
        staged.finish(0o644 if wanted is None else wanted)
        try:
            staged.publish(parts[-1], replaces=current is not None)
        except FileExistsError:
            raise HostConflict(TAKEN) from None

    def make_directory(self, parts: Parts) -> None:
        """Makes a directory whose parent exists; one that exists is fine."""
        with self._directory(parts[:-1]) as directory:
            try:
                os.mkdir(parts[-1], 0o777 & ~self._umask, dir_fd=directory)
            except FileExistsError:
                entry = self._look(directory, parts[-1])
                if entry is None or entry.kind != "directory":
                    raise HostConflict(TAKEN) from None

    def remove(self, parts: Parts, expected: HostEntry) -> None:
        """Removes a file or link that is as `expected`, or an empty directory."""
        current = self.state(parts)
        if current is None:
            return
        self._expect(current, expected)
        with self._directory(parts[:-1]) as directory:
            if expected.kind == "directory":
                os.rmdir(parts[-1], dir_fd=directory)
            else:
                os.unlink(parts[-1], dir_fd=directory)
            os.fsync(directory)

    def change_mode(self, parts: Parts, mode: int) -> None:
        """Sets the permission bits of a regular file."""
        with self._directory(parts[:-1]) as directory, self._open(directory, parts[-1]) as file:
            os.fchmod(file.fileno(), self.allowed_mode(mode))

    def allowed_mode(self, mode: int) -> int:
        """Permission bits that a sandbox may set: no set-id or sticky bit, less the umask."""
        return mode & 0o777 & ~self._umask

    # --- Steps ---------------------------------------------------------------

    @staticmethod
    def _expect(current: HostEntry | None, expected: HostEntry | None) -> None:
        if current is None and expected is not None:
            raise HostConflict("it was removed meanwhile")
        if current is not None and not current.same_content(expected):
            raise HostConflict(TAKEN if expected is None else "it changed meanwhile")

    @contextmanager
    def _directory(self, parts: Parts) -> Iterator[int]:
        current = os.dup(self._root)
        try:
            for part in parts:
                try:
                    following = os.open(part, _DIRECTORY, dir_fd=current)
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENOTDIR):
                        raise HostConflict(f"`{shown(parts)}` is no directory") from None
                    raise
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)

    def _look(self, directory: int, name: str) -> HostEntry | None:
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return HostEntry("link", target=os.readlink(name, dir_fd=directory))
        except FileNotFoundError:
            return None
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISREG(status.st_mode):
            return HostEntry("file", status.st_size, mode)
        return HostEntry("directory" if stat.S_ISDIR(status.st_mode) else "special", mode=mode)

    def _open(self, directory: int, name: str) -> BinaryIO:
        descriptor = os.open(name, _FILE, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise HostConflict("it is no regular file")
            return os.fdopen(descriptor, "rb", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise
