"""The worker's id, and as whom its sandboxes run."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from sandboxd.backends import identity
from sandboxd.backends.image_user import ImageUser
from sandboxd.errors import CreateFailed, StartupError


def test_worker_id_stays_the_same(tmp_path: Path) -> None:
    first = identity.worker_id(tmp_path)
    assert identity.worker_id(tmp_path) == first
    assert len(first) == 36
    assert [path.name for path in tmp_path.iterdir()] == ["worker-id"]


def test_worker_id_that_was_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "worker-id").write_text("x\ny")
    with pytest.raises(StartupError):
        identity.worker_id(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_s2_uid_of_sandboxes_is_no_host_accounts_and_stays(tmp_path: Path) -> None:
    uid = identity.sandbox_uid(tmp_path)
    assert uid == identity.sandbox_uid(tmp_path)
    assert identity.UID_FIRST <= uid < identity.UID_FIRST + identity.UID_COUNT
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_s2_uid_that_a_host_account_took_later_is_refused(tmp_path: Path) -> None:
    (tmp_path / "session-uid").write_text("0\n")
    with pytest.raises(StartupError):
        identity.sandbox_uid(tmp_path)


@pytest.mark.parametrize(
    ("profile", "image", "allow_root", "wanted"),
    [
        ("auto", None, False, (60_001, 60_001)),
        ("1000:1001", None, False, (1000, 1001)),
        ("image", ImageUser(1000, 5), False, (1000, 5)),
        ("image", ImageUser(0, 0), True, (0, 0)),
        ("0:0", None, True, (0, 0)),
    ],
)
def test_user_is_what_the_profile_says(
    profile: str, image: ImageUser | None, allow_root: bool, wanted: tuple[int, int]
) -> None:
    assert identity.user_of(profile, image, 60_001, allow_root=allow_root) == wanted


@pytest.mark.parametrize("gid", [0, 1000])
def test_user_of_the_image_that_is_root_is_refused(gid: int) -> None:
    with pytest.raises(CreateFailed) as refused:
        identity.user_of("image", ImageUser(0, gid), 60_001, allow_root=False)
    assert refused.value.reason == "START_FAILED"
    assert "the image's user is root" in str(refused.value)


def test_user_of_the_profile_that_is_root_is_refused_as_the_profiles() -> None:
    with pytest.raises(CreateFailed, match="the profile's user is root"):
        identity.user_of("0:5", None, 60_001, allow_root=False)
