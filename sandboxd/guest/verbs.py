"""The ops under `FileService`: whole contents, in pieces, for programs.

Writes take the same locks as the tools and replace files by the same rules
(`replace`); the uploads are in `uploads`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import stat
import threading

from . import uploads
from .handles import HANDLES
from .listing import Listing
from .locks import FILE_LOCKS, entry_identity
from .opening import SIZE_TOLD_MAX, open_regular
from .ops import Answer, Facts, Op, OpError, Request
from .parents import Parents
from .paths import fault, resolve, shown
from .removal import remove_tree
from .versions import file_version

READ_BYTES_MAX = 1024 * 1024
ENTRIES_BYTES_MAX = 32 * 1024
"""JSON of one page of a listing, without its last entry; a header holds 64 KiB."""
ENTRIES_MAX = 500


class _OpenFile:
    def __init__(self, fd: int, position: int) -> None:
        self.fd = fd
        self.position = position

    def close(self) -> None:
        os.close(self.fd)


def stat_facts(found: os.stat_result, version: str = "", link_target: str = "") -> Facts:
    """The `stat` object of an entry."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return {
        "kind": kinds.get(stat.S_IFMT(found.st_mode), "special"),
        "size": min(found.st_size, SIZE_TOLD_MAX),
        "mode": stat.S_IMODE(found.st_mode),
        "uid": found.st_uid,
        "gid": found.st_gid,
        "mtime_ns": found.st_mtime_ns,
        "version": version,
        "link_target": link_target,
    }


def file_open(request: Request) -> Answer:
    path = request.text("path")
    offset = request.integer("offset")
    whole = offset == 0 and not request.flag("part")
    try:
        fd, found = open_regular(resolve(request.machine, path), os.O_RDONLY, path, request)
    except OSError as error:
        raise fault(error, path) from None
    try:
        # Of the file as it is now: a rename leaves the descriptor with these bytes. Whoever
        # wants a part of it would wait for the hash of the whole.
        version = _version(fd, found, request) if whole else ""
    except BaseException:
        os.close(fd)
        raise
    handle = HANDLES.add(_OpenFile(fd, offset))
    return {"handle": handle, "stat": stat_facts(found, version)}, b""


def _version(fd: int, found: os.stat_result, request: Request) -> str:
    """The version that belongs to `found`; empty where there is none that fits its size."""
    try:
        version, size = file_version(fd, found, request)
    except OSError:
        return ""
    return version if size == found.st_size else ""


def file_read(request: Request) -> Answer:
    bytes_max = request.integer("bytes_max", 1, READ_BYTES_MAX)
    with HANDLES.use(request.text("handle"), _OpenFile) as file:
        data = bytearray()
        eof = False
        try:
            while len(data) < bytes_max:
                piece = os.pread(file.fd, bytes_max - len(data), file.position)
                if not piece:
                    eof = True
                    break
                data += piece
                file.position += len(piece)
        except BlockingIOError:
            eof = True
        except OSError as error:
            raise fault(error, "the file", "read") from None
    return {"eof": eof}, bytes(data)


def close_handle(request: Request) -> Answer:
    HANDLES.end(request.text("handle"))
    return {}, b""


def stat_path(request: Request) -> Answer:
    path = request.text("path")
    follow = request.flag("follow")
    absolute = resolve(request.machine, path, follow=follow)
    try:
        found = os.stat(absolute, follow_symlinks=follow)
        link = _link_target(absolute, found)
    except OSError as error:
        raise fault(error, path, "stat") from None
    version = ""
    if stat.S_ISREG(found.st_mode):
        flags = os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW
        # What may not be read has facts all the same.
        with contextlib.suppress(OSError, OpError):
            fd, found = open_regular(absolute, flags, path, request)
            try:
                version = _version(fd, found, request)
            finally:
                os.close(fd)
        request.stop_if_cancelled("Cancelled while the file was read.")
    return {"stat": stat_facts(found, version, link)}, b""


def _link_target(path: str | bytes, found: os.stat_result) -> str:
    return shown(os.readlink(os.fsencode(path))) if stat.S_ISLNK(found.st_mode) else ""


class _OpenListing(Listing):
    def __init__(self, root: str, *, recursive: bool) -> None:
        super().__init__(root, recursive=recursive)
        self.root = os.fsencode(root)


def list_open(request: Request) -> Answer:
    path = request.text("path")
    try:
        listing = _OpenListing(resolve(request.machine, path), recursive=request.flag("recursive"))
    except OSError as error:
        raise fault(error, path, "list") from None
    return {"handle": HANDLES.add(listing)}, b""


def list_next(request: Request) -> Answer:
    entries: list[Facts] = []
    size = 0
    done = False
    with HANDLES.use(request.text("handle"), _OpenListing) as listing:
        while len(entries) < ENTRIES_MAX and size < ENTRIES_BYTES_MAX:
            found = listing.next_entry()
            if found is None:
                done = True
                break
            entry = _entry_facts(listing.root, *found)
            size += len(json.dumps(entry, ensure_ascii=False).encode("utf-8"))
            if entries and size > ENTRIES_BYTES_MAX:
                listing.put_back(found)
                break
            entries.append(entry)
        return {"entries": entries, "done": done, "unreadable": listing.unreadable}, b""


def _entry_facts(root: bytes, path: bytes, found: os.stat_result) -> Facts:
    link = ""
    with contextlib.suppress(OSError):
        link = _link_target(os.path.join(root, path), found)
    return {
        "path": shown(path),
        "raw": base64.b64encode(path).decode("ascii"),
        "stat": stat_facts(found, link_target=link),
    }


def mkdir(request: Request) -> Answer:
    path = request.text("path")
    mode = request.optional_integer("mode", 0, 0o777)
    absolute = resolve(request.machine, path).rstrip("/") or "/"
    try:
        with Parents(os.path.dirname(absolute)):
            os.mkdir(absolute)
            if mode is not None:
                os.chmod(absolute, mode)
    except FileExistsError as error:
        if os.path.isdir(absolute):
            return {"created": False}, b""
        raise fault(error, path, "make the directory") from None
    except OSError as error:
        raise fault(error, path, "make the directory") from None
    return {"created": True}, b""


def move(request: Request) -> Answer:
    source, target = request.text("source"), request.text("target")
    replace = request.flag("replace")
    old = resolve(request.machine, source, follow=False)
    new = resolve(request.machine, target, follow=False)
    shown_path = source
    try:
        _refuse_roots(request, old, source)
        shown_path = target
        os.stat(os.path.dirname(new.rstrip("/")) or "/")
        shown_path = source
        os.lstat(old)
        with FILE_LOCKS.hold(lambda: (entry_identity(old), entry_identity(new)), request):
            _move(old, new, target, replace)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise OpError(
                "INVALID_INPUT", f"{shown(source)} cannot be moved into itself."
            ) from None
        raise fault(error, shown_path, "move") from None
    return {}, b""


def _move(old: str, new: str, target: str, replace: bool) -> None:
    try:
        there: os.stat_result | None = os.lstat(new)
    except FileNotFoundError:
        there = None
    if there is not None and not replace:
        raise OpError("FILE_EXISTS", f"Something exists at {shown(target)} already.")
    if there is not None and os.path.samestat(there, os.lstat(old)):
        # Two names of one file: a rename would leave both.
        if os.path.realpath(os.path.dirname(old)) != os.path.realpath(
            os.path.dirname(new)
        ) or os.path.basename(old) != os.path.basename(new):
            os.unlink(old)
        return
    os.rename(old, new)


def remove(request: Request) -> Answer:
    path = request.text("path")
    recursive = request.flag("recursive")
    absolute = resolve(request.machine, path, follow=False)
    try:
        found = os.lstat(absolute)
    except FileNotFoundError:
        return {"removed": False}, b""
    except OSError as error:
        raise fault(error, path, "remove") from None
    try:
        if not stat.S_ISDIR(found.st_mode):
            with FILE_LOCKS.hold(lambda: (entry_identity(absolute),), request):
                os.unlink(absolute)
            return {"removed": True}, b""
        _refuse_roots(request, absolute, path)
        if recursive:
            part = "Cancelled; part of the tree is removed."
            remove_tree(os.path.realpath(absolute), lambda: request.stop_if_cancelled(part))
        else:
            os.rmdir(absolute)
    except FileNotFoundError:
        # Somebody else was faster; nothing is there now.
        return {"removed": False}, b""
    except OSError as error:
        raise fault(error, path, "remove") from None
    return {"removed": True}, b""


def _refuse_roots(request: Request, absolute: str, path: str) -> None:
    """The session's own folders stay, and so does everything that holds them."""
    machine = request.machine
    real = os.path.realpath(absolute)
    for kept in (machine.workdir, machine.home, machine.root):
        if kept is None:
            continue
        base = os.path.realpath(kept)
        if base == real or base.startswith(real.rstrip("/") + "/"):
            if os.path.islink(absolute):
                return
            raise OpError(
                "INVALID_INPUT",
                f"{shown(path)} holds the session's own folders and stays. Name what is in it.",
            )


def start() -> None:
    """Starts the thread that ends idle handles; once, before the first command."""
    threading.Thread(target=HANDLES.run_expiry, name="handles", daemon=True).start()


def drop_handles() -> None:
    """Ends everything that was open for a connection that is lost."""
    HANDLES.drop_all()


OPS = {
    "file_open": Op(file_open, "verb"),
    "file_read": Op(file_read, "verb"),
    "file_close": Op(close_handle, "verb"),
    **uploads.OPS,
    "upload_abort": Op(close_handle, "verb"),
    "stat": Op(stat_path, "verb"),
    "list_open": Op(list_open, "verb"),
    "list_next": Op(list_next, "verb"),
    "list_close": Op(close_handle, "verb"),
    "mkdir": Op(mkdir, "verb"),
    "move": Op(move, "verb"),
    "remove": Op(remove, "verb"),
}
