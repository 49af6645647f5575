"""Replacing a file's content, so that readers see the old or the new and never half.

A new file is written beside the target and renamed over it where that cannot be
seen by anything but its atomicity: the target is a regular file with one name
that we may write, and mode, owner, extended attributes and ACL can be carried
over. Where it would be seen (hard links, a file mounted into place, a directory
that takes no new file, an owner that cannot be given), the content is written in
place, with the old bytes held back and put back on any failure. In place, a
reader at that moment can see a mixture, and a guest killed at that moment leaves
one; a rename has neither fault.

The caller holds the file's lock. Nothing is forced to the disk: the promise is
about processes that die, not about a host that loses power.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TypeAlias

from .opening import open_regular, write_all
from .ops import OpError, Request
from .paths import fault, kind_fault, shown
from .staging import Bytes, Staged, stage_beside, stage_nameless
from .versions import DIGEST_BYTES_MAX, Expected, placed_version, version_conflict

Content: TypeAlias = Bytes | Staged

HELD_IN_MEMORY_MAX = 1024 * 1024
"""Old bytes held in memory while a file is written in place; more go to a file."""

_IN_PLACE_ERRNOS = frozenset(
    {
        errno.EBUSY,
        errno.EXDEV,
        errno.EPERM,
        errno.EACCES,
        errno.ENOTSUP,
        errno.EROFS,
        errno.ENAMETOOLONG,
    }
)
"""What a rename beside the target fails with where writing the file itself can work."""

_NO_LINK_ERRNOS = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.EXDEV,
        errno.EMLINK,
        errno.ENOSYS,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
    }
)
"""What a second name fails with on file systems that have none, or no more of them."""

_ATTRIBUTES_SKIPPED = frozenset({"security.capability", "security.ima", "security.evm"})
"""Bound to the old content: the kernel drops them itself when a file is written."""


class _Visible(Exception):
    """A rename would be seen: write in place."""


class _Taken(Exception):
    """The file must be new, and somebody just made it."""


def writable_target(absolute: str, path: str) -> str:
    """The real path behind `absolute`, links followed, dangling ones too.

    Raises `OpError` where something other than a regular file is there.
    """
    if absolute.endswith(("/", "/.", "/..")):
        # The kernel would refuse it as well; realpath would drop the slash.
        if os.path.isdir(absolute) or not os.path.lexists(absolute.rstrip("/")):
            raise OpError("IS_DIRECTORY", f"{shown(path)} names a directory, not a file.")
        raise fault(OSError(errno.ENOTDIR, ""), path, "write")
    try:
        refused = kind_fault(os.stat(absolute).st_mode, path)
    except FileNotFoundError:
        refused = None
    if refused is not None:
        raise refused
    return os.path.realpath(absolute)


def replace_file(
    target: str,
    content: Content,
    request: Request,
    path: str,
    *,
    version: str,
    mode: int | None = None,
    expected: Expected | None = None,
) -> tuple[bool, str]:
    """Puts `content` at the real path `target`; gives whether the file is new, and its version.

    `version` is that of the content, empty where the content is over the digest's
    bound: then it is made from the file. `mode` is set on the file where given.
    A cancel that comes before the content is in place undoes everything; later it
    changes nothing. On any failure, VERSION_CONFLICT included, the old content is
    intact. Raises `OpError` and `OSError`.
    """
    try:
        old: os.stat_result | None = os.stat(target)
    except FileNotFoundError:
        old = None
    if old is not None:
        refused = kind_fault(old.st_mode, path)
        if refused is not None:
            raise refused
    if expected is not None:
        # Before a temporary file is made, which would show in the directory's times.
        expected.compare(target, request)
    if old is not None and not os.access(target, os.W_OK, effective_ids=True):
        # A rename would get around the file's own permission.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    try:
        found = _rename_over(target, content, old, request, mode, expected)
    except _Taken:
        raise version_conflict(path) from None
    except _Visible:
        found = _write_in_place(target, content, request, path, mode, expected)
    return old is None, version or found


def _rename_over(
    target: str,
    content: Content,
    old: os.stat_result | None,
    request: Request,
    mode: int | None,
    expected: Expected | None,
) -> str:
    """Gives the version of the placed file where its content is over the digest's bound."""
    if old is not None and old.st_nlink > 1:
        raise _Visible
    staged: Staged | None = None
    try:
        if isinstance(content, Staged) and _beside(content, target):
            staged = content
        else:
            # Until it carries the old file's mode, nobody else may read it.
            staged = stage_beside(target, 0o666 if old is None else 0o600)
            for chunk in content.chunks():
                request.stop_if_cancelled()
                staged.append(chunk)
        if old is not None:
            _carry_over(staged.fd, target, old)
        elif staged is content:
            os.fchmod(staged.fd, 0o666 & ~_umask())
        if mode is not None:
            os.fchmod(staged.fd, mode)
        request.stop_if_cancelled()
        written = os.fstat(staged.fd)
        if expected is not None:
            expected.compare(target, request)
        _place(staged, target, request, expected)
        return placed_version(staged.fd, written) if content.size > DIGEST_BYTES_MAX else ""
    except OSError as error:
        if old is not None and error.errno in _IN_PLACE_ERRNOS:
            raise _Visible from None
        raise
    finally:
        if staged is not None and staged is not content:
            staged.discard()


def _place(staged: Staged, target: str, request: Request, expected: Expected | None) -> None:
    assert staged.path is not None
    if expected is not None and expected.absent:
        try:
            # Unlike a rename, a link never replaces what a command just made.
            os.link(staged.path, target, follow_symlinks=False)
        except FileExistsError:
            raise _Taken from None
        except OSError as error:
            if error.errno not in _NO_LINK_ERRNOS:
                raise
            # The try took its time, and a rename would replace what was made meanwhile.
            expected.compare(target, request)
        else:
            # At once: the number of names shows in the file's times.
            staged.unname()
            return
    os.rename(staged.path, target)
    staged.placed()


def _beside(staged: Staged, target: str) -> bool:
    return staged.path is not None and os.path.dirname(staged.path) == os.path.dirname(target)


def _carry_over(fd: int, target: str, old: os.stat_result) -> None:
    """Gives the new file what the old one has; `_Visible` where that cannot be."""
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except OSError:
            raise _Visible from None
    _carry_attributes(fd, target)
    # After the owner, since a change of owner clears the set-id bits, and after
    # the ACL, whose mask the group bits are.
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def _carry_attributes(fd: int, target: str) -> None:
    try:
        wanted = set(os.listxattr(target)) - _ATTRIBUTES_SKIPPED
        present = set(os.listxattr(fd))
    except OSError:
        return  # A file system without attributes has none to lose.
    for name in present - wanted:
        if name.startswith(("user.", "system.posix_acl")):
            # Inherited from the directory's default ACL; the old file had none.
            os.removexattr(fd, name)
    for name in wanted:
        try:
            value = os.getxattr(target, name)
            if name not in present or os.getxattr(fd, name) != value:
                os.setxattr(fd, name, value)
        except OSError:
            # Labels of the kernel's own (SELinux) are the kernel's to give; the
            # user's attributes and ACL must survive.
            if name.startswith(("user.", "system.posix_acl")):
                raise _Visible from None


def _write_in_place(
    target: str,
    content: Content,
    request: Request,
    path: str,
    mode: int | None,
    expected: Expected | None,
) -> str:
    """Gives the version of the file where its content is over the digest's bound."""
    fd, found = open_regular(target, os.O_RDWR, path, request)
    held: Staged | Bytes | None = None
    try:
        held = _hold_back(fd, found.st_size, target)
        request.stop_if_cancelled()
        if expected is not None:
            expected.compare_open(fd, request)
        if content.size > found.st_size:
            _reserve(fd, found.st_size, content.size)
        try:
            _overwrite(fd, content)
            if mode is not None:
                os.fchmod(fd, mode)
            elif found.st_mode & (stat.S_ISUID | stat.S_ISGID):
                # The kernel takes these two away when somebody else than root writes.
                with contextlib.suppress(PermissionError):
                    os.fchmod(fd, stat.S_IMODE(found.st_mode))
        except OSError:
            _restore(fd, held, path)
            raise
        return placed_version(fd, os.fstat(fd)) if content.size > DIGEST_BYTES_MAX else ""
    finally:
        if isinstance(held, Staged):
            held.discard()
        os.close(fd)


def _hold_back(fd: int, size: int, target: str) -> Staged | Bytes:
    """Copies the old bytes. Raises `OSError` where there is no room for them."""
    if size <= HELD_IN_MEMORY_MAX:
        return Bytes(os.pread(fd, size, 0))
    try:
        held = stage_nameless(os.path.dirname(target))
    except OSError:
        held = stage_nameless("/tmp")
    try:
        for chunk in Staged(fd, None).chunks():
            held.append(chunk)
    except BaseException:
        held.discard()
        raise
    return held


def _reserve(fd: int, old_size: int, new_size: int) -> None:
    """Takes the room for a longer content before a byte of the old one changes."""
    try:
        os.posix_fallocate(fd, old_size, new_size - old_size)
    except OSError as error:
        os.ftruncate(fd, old_size)
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
            return
        raise


def _overwrite(fd: int, content: Content) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    for chunk in content.chunks():
        write_all(fd, chunk)
    os.ftruncate(fd, content.size)


def _restore(fd: int, held: Staged | Bytes, path: str) -> None:
    try:
        _overwrite(fd, held)
    except OSError as error:
        raise OpError(
            "IO_ERROR",
            f"Writing {shown(path)} failed, and its old content could not be put back "
            f"({(error.strerror or 'unknown error').lower()}). Check the file before you use it.",
        ) from None


def _umask() -> int:
    # os.umask can only be read by setting it, which other threads would see.
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    return 0o022
