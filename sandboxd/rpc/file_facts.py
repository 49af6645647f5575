"""What the guest's file verbs answer, checked, as messages of the contract.

The facts are those of `guest/README.md`; hostile until they have passed here.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, Literal

from pydantic import Field

from sandbox_adapter.v1 import file_pb2
from sandboxd.errors import SandboxLost
from sandboxd.tools.facts import Count, Facts
from sandboxd.tools.versions import Version

_KINDS: Final = {
    "file": file_pb2.FILE_KIND_FILE,
    "directory": file_pb2.FILE_KIND_DIRECTORY,
    "symlink": file_pb2.FILE_KIND_SYMLINK,
    "special": file_pb2.FILE_KIND_SPECIAL,
}
_NANOS_MIN: Final = -62_135_596_800 * 10**9
"""The year 1, where a protobuf timestamp starts."""
_NANOS_MAX: Final = 253_402_300_799 * 10**9
"""The year 9999, where it ends."""
_Path = Annotated[str, Field(max_length=65_536)]


class StatFacts(Facts):
    kind: Literal["file", "directory", "symlink", "special"]
    size: Count
    mode: Annotated[int, Field(ge=0, le=0o7777)]
    uid: Annotated[int, Field(ge=0, lt=2**32)]
    gid: Annotated[int, Field(ge=0, lt=2**32)]
    mtime_ns: Annotated[int, Field(ge=-(2**80), le=2**80)]
    version: Version
    link_target: _Path

    def message(self) -> file_pb2.FileStat:
        """A time that no timestamp can hold becomes the nearest one that it can."""
        nanos = min(max(self.mtime_ns, _NANOS_MIN), _NANOS_MAX)
        stat = file_pb2.FileStat(
            kind=_KINDS[self.kind],
            size=self.size,
            mode=self.mode,
            uid=self.uid,
            gid=self.gid,
            version=self.version,
            link_target=clean(self.link_target),
        )
        stat.modified_at.FromNanoseconds(nanos)
        return stat


class HandleFacts(Facts):
    handle: Annotated[str, Field(max_length=64)]


class OpenFacts(HandleFacts):
    stat: StatFacts


class ReadFacts(Facts):
    eof: bool


class AnyStatFacts(Facts):
    stat: StatFacts


class CommitFacts(Facts):
    bytes: Count
    created: bool
    version: Version
    lock_wait_s: Annotated[float, Field(ge=0)] | None = None


class EntryFacts(Facts):
    path: _Path
    raw: _Path
    stat: StatFacts

    def message(self) -> file_pb2.DirectoryEntry:
        try:
            raw = base64.b64decode(self.raw, validate=True)
        except (binascii.Error, ValueError):
            raise SandboxLost("PROTOCOL", "a name of a listing is no base64") from None
        return file_pb2.DirectoryEntry(
            path=clean(self.path), raw_path=raw, stat=self.stat.message()
        )


class PageFacts(Facts):
    entries: Annotated[list[EntryFacts], Field(max_length=1_000)]
    done: bool
    unreadable: Count


class CreatedFacts(Facts):
    created: bool


class RemovedFacts(Facts):
    removed: bool


def clean(text: str) -> str:
    """What protobuf takes: valid UTF-8 without NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
