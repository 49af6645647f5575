"""Whom an image means by its `USER`: account files are data, and may be anything."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

import pytest

from sandboxd.backends.docker_spec import ImageFacts
from sandboxd.backends.image_user import ACCOUNTS_BYTES_MAX, ImageUser, ImageUsers
from sandboxd.errors import CreateFailed
from tests.unit.backends.stored_engine import StoredEngine

PASSWD = (
    b"root:x:0:0::/root:/bin/sh\n\nbroken\n#app:x:5:5\napp:x:1234:2345::/:/x\n"
    b"far:x:99999999999:1::/:\n"
)
GROUP = b"root:x:0:\nstaff:x:3456:app\nodd:x:many:\n"


def facts(user: str) -> ImageFacts:
    return ImageFacts(name="x", id=f"sha256:{user}", digest="", user=user, volumes=("/data",))


def packed(kind: bytes, content: bytes = b"", target: str = "") -> Iterator[bytes]:
    """An archive of one entry, in pieces as a connection gives them."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        info = tarfile.TarInfo("passwd")
        info.type, info.size, info.linkname = kind, len(content), target
        archive.addfile(info, io.BytesIO(content))
    whole = raw.getvalue()
    return iter([whole[start : start + 1000] for start in range(0, len(whole), 1000)])


def engine(passwd: bytes = PASSWD) -> StoredEngine:
    return StoredEngine(
        {
            "/etc/passwd": lambda: packed(tarfile.REGTYPE, passwd),
            "/etc/group": lambda: packed(tarfile.REGTYPE, GROUP),
        }
    )


async def found(user: str) -> ImageUser:
    return await ImageUsers(engine()).of(facts(user), {"owner": "x"})


@pytest.mark.parametrize(
    ("user", "wanted"),
    [
        ("", ImageUser(0, 0)),
        ("0:0", ImageUser(0, 0)),
        ("1000:5", ImageUser(1000, 5)),
        ("1000", ImageUser(1000, 1000)),
        ("1234", ImageUser(1234, 2345, "app")),
        ("app", ImageUser(1234, 2345, "app")),
        ("app:staff", ImageUser(1234, 3456, "app")),
        ("app:7", ImageUser(1234, 7, "app")),
        ("1000:staff", ImageUser(1000, 3456)),
        ("root", ImageUser(0, 0, "root")),
        ("2147483647:0", ImageUser(2**31 - 1, 0)),
    ],
)
async def test_user_is_what_the_images_accounts_say(user: str, wanted: ImageUser) -> None:
    assert await found(user) == wanted


@pytest.mark.parametrize(
    "user",
    ["node", "#ap", "app:users", "app:odd", "far", "2147483648:1", "1:2147483648", ":", "９", "-1"],
)
async def test_user_that_cannot_be_told_is_refused(user: str) -> None:
    with pytest.raises(CreateFailed) as refused:
        await found(user)
    assert refused.value.reason == "START_FAILED"


@pytest.mark.parametrize(
    "content",
    [
        lambda: packed(tarfile.DIRTYPE),
        lambda: packed(tarfile.FIFOTYPE),
        lambda: packed(tarfile.CHRTYPE),
        lambda: packed(tarfile.LNKTYPE, target="shadow"),
        lambda: packed(tarfile.SYMTYPE, target="passwd"),
        lambda: packed(tarfile.REGTYPE, bytes(ACCOUNTS_BYTES_MAX + 100_000)),
        lambda: iter([b"no archive" * 100]),
        lambda: iter([]),
    ],
)
async def test_account_file_that_is_none_is_refused_and_the_container_goes(content: object) -> None:
    stored = StoredEngine({"/etc/passwd": content})  # type: ignore[dict-item]
    with pytest.raises(CreateFailed) as refused:
        await ImageUsers(stored).of(facts("app"), {})
    assert refused.value.reason == "START_FAILED"
    assert stored.there == []


async def test_image_is_asked_once_and_by_a_container_without_volumes() -> None:
    stored = engine()
    users = ImageUsers(stored)
    assert await users.of(facts("app"), {"owner": "x"}) == await users.of(facts("app"), {})
    assert stored.made == 1
    assert stored.there == []
    assert stored.last_config["Labels"] == {"owner": "x"}
    assert stored.last_config["HostConfig"] == {"Tmpfs": {"/data": ""}}


async def test_link_of_an_account_file_is_followed_by_the_engine() -> None:
    stored = StoredEngine(
        {
            "/etc/passwd": lambda: packed(tarfile.SYMTYPE, target="../usr/lib/passwd"),
            "/etc/../usr/lib/passwd": lambda: packed(tarfile.REGTYPE, PASSWD),
        }
    )
    assert await ImageUsers(stored).of(facts("app"), {}) == ImageUser(1234, 2345, "app")
