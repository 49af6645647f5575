"""Whom an image means by its `USER`, found without running anything of it.

`user = "image"` takes the image's user. Where that is a name, or a number without a group, the
image's own `/etc/passwd` and `/etc/group` tell the numbers, as they tell the engine. They are
copied out of a container that never starts and are read as data, with bounds.
"""

from __future__ import annotations

import io
import posixpath
import re
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from sandboxd.backends.docker_spec import ImageFacts
from sandboxd.backends.engine import Engine, EngineNotFound, EngineRefused
from sandboxd.errors import CreateFailed
from sandboxd.limits import KIB, MIB

ACCOUNTS_BYTES_MAX: Final = 1 * MIB
"""Of each of the two files."""
_ARCHIVE_BYTES_MAX: Final = ACCOUNTS_BYTES_MAX + 64 * KIB
IMAGES_MAX: Final = 256
"""Images whose users are remembered."""
LINKS_MAX: Final = 8
"""Links that are followed from an account file."""
ID_MAX: Final = 2**31 - 1
"""The engine refuses greater ones."""
_NUMBER: Final = re.compile(r"[0-9]{1,20}\Z", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?\Z", re.ASCII)
_Rows = list[list[str]]
"""Lines, each as its columns."""


class ImageUser(NamedTuple):
    """The numbers behind an image's `USER`, and the account's name where it has one."""

    uid: int
    gid: int
    name: str = ""


class ImageUsers:
    """Asks the engine once for each image."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, ImageUser] = {}
        """By the image's id, which stands for its `USER` too. Oldest first."""

    async def of(self, image: ImageFacts, labels: Mapping[str, str]) -> ImageUser:
        """The image's `USER`: empty, `NAME` or `UID`, each also with `:GROUP`.

        `labels` go to the container that is never started: should the daemon die meanwhile, the
        sweeper knows it by them. Raises `CreateFailed` START_FAILED, `EngineRefused` and
        `EngineDown`.
        """
        found = self._known.get(image.id)
        if found is None:
            found = await _image_user(self._engine, image, labels)
            self._known[image.id] = found
            if len(self._known) > IMAGES_MAX:
                del self._known[next(iter(self._known))]
        return found


async def _image_user(engine: Engine, image: ImageFacts, labels: Mapping[str, str]) -> ImageUser:
    user = image.user or "0:0"
    who, _, group = user.partition(":")
    if _NUMBER.match(who) and _NUMBER.match(group):
        return ImageUser(_id(who, user), _id(group, user))
    try:
        passwd, groups = await _accounts(engine, image, labels)
    except (ValueError, tarfile.TarError) as error:
        raise _unknown(user, str(error)) from None
    account = next((row for row in passwd if len(row) > 3 and who in (row[0], row[2])), None)
    if account is None and not _NUMBER.match(who):
        raise _unknown(user, "the image's /etc/passwd has no such user")
    uid = _id(who if account is None else account[2], user)
    name = account[0] if account is not None and _NAME.match(account[0]) else ""
    if group:
        named = next((row for row in groups if len(row) > 2 and row[0] == group), None)
        if named is None and not _NUMBER.match(group):
            raise _unknown(user, "the image's /etc/group has no such group")
        return ImageUser(uid, _id(group if named is None else named[2], user), name)
    # A number that is nobody's has no group of its own; the engine would make it root's.
    return ImageUser(uid, _id(str(uid) if account is None else account[3], user), name)


def _id(text: str, user: str) -> int:
    if not _NUMBER.match(text) or int(text) > ID_MAX:
        raise CreateFailed(
            "START_FAILED",
            "the image's user has an impossible number",
            f"user of the image: {user[:100]!r}; ids are 0 to {ID_MAX}",
        )
    return int(text)


def _unknown(user: str, why: str) -> CreateFailed:
    return CreateFailed(
        "START_FAILED",
        "the image's user cannot be told; the profile can name `UID:GID`",
        f"user of the image: {user[:100]!r}; {why}",
    )


async def _accounts(
    engine: Engine, image: ImageFacts, labels: Mapping[str, str]
) -> tuple[_Rows, _Rows]:
    """passwd and group. Raises ValueError, `tarfile.TarError`."""
    container = await engine.create(
        f"sandboxd-{secrets.token_hex(8)}",
        {
            "Image": image.id,
            # Never run; an image may have none, and then the engine wants one.
            "Entrypoint": ["/"],
            "NetworkDisabled": True,
            "Labels": dict(labels),
            # Else the engine would copy what the image's volumes hold.
            "HostConfig": {"Tmpfs": dict.fromkeys(image.volumes, "")},
        },
    )
    try:
        return (
            await _table(engine, container, "/etc/passwd"),
            await _table(engine, container, "/etc/group"),
        )
    finally:
        await engine.remove(container)


async def _table(engine: Engine, container: str, path: str) -> _Rows:
    """The rows of a file; none where there is no such file."""
    for _ in range(LINKS_MAX):
        found = await _copied(engine, container, path)
        if not isinstance(found, str):
            return found
        # The engine resolves it below the image's root, wherever it leads.
        path = posixpath.join(posixpath.dirname(path), found)
    raise ValueError(f"more than {LINKS_MAX} links lead on from each other")


async def _copied(engine: Engine, container: str, path: str) -> _Rows | str:
    took: list[_Rows | str] = []
    try:
        await engine.export(container, path, lambda chunks: took.append(_taken(chunks, path)))
    except EngineNotFound:
        return []
    except EngineRefused as error:
        raise ValueError(f"`{path}` cannot be read: {error.operator_text[:500]}") from None
    return took[0]


def _taken(chunks: Iterator[bytes], path: str) -> _Rows | str:
    """The rows of an archive's one file, or where its one link leads."""
    raw = io.BytesIO()
    for chunk in chunks:
        raw.write(chunk)
        if raw.tell() > _ARCHIVE_BYTES_MAX:
            raise ValueError(f"`{path}` is larger than {ACCOUNTS_BYTES_MAX} bytes")
    raw.seek(0)
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        member = archive.next()
        if member is not None and member.issym():
            return member.linkname
        source = archive.extractfile(member) if member is not None and member.isreg() else None
        if source is None:
            raise ValueError(f"`{path}` is no plain file")
        lines = source.read().decode("utf-8", "replace").splitlines()
    return [[column.strip() for column in line.split(":")] for line in lines if line.strip()]
