"""The ops of an upload: a content that comes in pieces and replaces a file at the end.

It lies beside its target until it is committed, so a stream that breaks off changes
nothing. Its handle ends as all do (`handles`).
"""

from __future__ import annotations

import contextlib
import errno
import os

from .handles import HANDLES
from .locks import FILE_LOCKS, identity
from .ops import Answer, Op, Request
from .parents import Parents
from .paths import fault, resolve
from .replace import replace_file, writable_target
from .staging import Staged, stage_beside, stage_nameless
from .versions import Digest, Expected, expected_of, expects_a_file, version_conflict

UPLOAD_BYTES_MAX = 1 << 40


class _Upload:
    def __init__(
        self,
        staged: Staged,
        parents: Parents | None,
        path: str,
        target: str,
        mode: int | None,
        expected: Expected | None,
    ) -> None:
        self.staged = staged
        self.parents = parents
        self.digest = Digest()
        self.path = path
        self.target = target
        self.mode = mode
        self.expected = expected

    def close(self) -> None:
        self.staged.discard()
        if self.parents is not None:
            # Of an upload that was committed they stay already.
            self.parents.end(kept=False)


def upload_open(request: Request) -> Answer:
    path = request.text("path")
    mode = request.optional_integer("mode", 0, 0o777)
    expected = expected_of(request, path)
    target = resolve(request.machine, path)
    try:
        real = writable_target(target, path)
        if expected is not None:
            # Not under the lock yet: only a stream that is in vain already is refused
            # here, before anything is made for it.
            expected.compare(real, request)
        parents = Parents(os.path.dirname(real)) if request.flag("make_parents") else None
        try:
            staged = _stage(real)
        except BaseException:
            if parents is not None:
                parents.end(kept=False)
            raise
    except OSError as error:
        raise fault(error, path, "write") from None
    upload = _Upload(staged, parents, path, target, mode, expected)
    return {"handle": HANDLES.add(upload)}, b""


def _stage(real: str) -> Staged:
    # A name that is too long shows here, since the temporary one beside it is cut to fit.
    with contextlib.suppress(FileNotFoundError):
        os.lstat(real)
    try:
        return stage_beside(real, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not os.path.exists(real):
            raise
        # The file itself may be writable where its directory is not.
        return stage_nameless("/tmp")


def upload_append(request: Request) -> Answer:
    handle = request.text("handle")
    with HANDLES.use(handle, _Upload) as upload:
        try:
            if upload.staged.size + len(request.body) > UPLOAD_BYTES_MAX:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            upload.staged.append(request.body)
            upload.digest.feed(request.body)
        except OSError as error:
            # Half a piece may be there: the upload cannot go on, and its room is
            # given back at once.
            HANDLES.end(handle)
            raise fault(error, upload.path, "write") from None
        return {"bytes": upload.staged.size}, b""


def upload_commit(request: Request) -> Answer:
    with HANDLES.use(request.text("handle"), _Upload, last=True) as upload:
        path, target = upload.path, upload.target
        try:
            with FILE_LOCKS.hold(lambda: (identity(target),), request) as waited_s:
                real = writable_target(target, path)
                created, version = replace_file(
                    real,
                    upload.staged,
                    request,
                    path,
                    version=upload.digest.version,
                    mode=upload.mode,
                    expected=upload.expected,
                )
                if upload.parents is not None:
                    upload.parents.end(kept=True)
        except OSError as error:
            if error.errno == errno.ENOENT and expects_a_file(upload.expected):
                raise version_conflict(path) from None
            raise fault(error, path, "write") from None
        return {
            "bytes": upload.staged.size,
            "created": created,
            "version": version,
            "lock_wait_s": round(waited_s, 6),
        }, b""


OPS = {
    "upload_open": Op(upload_open, "verb"),
    "upload_append": Op(upload_append, "verb"),
    "upload_commit": Op(upload_commit, "verb"),
}
"""`upload_abort` closes a handle as every other end does (`verbs`)."""
