"""The folder of a sandbox: made, handed over, removed."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from sandboxd.backends.folders import SessionFolder, SessionFolders
from sandboxd.errors import SandboxdError

ROOT = os.geteuid() == 0
UID = 60_777 if ROOT else os.geteuid()
GID = 60_777 if ROOT else os.getegid()


@pytest.fixture
def folders(tmp_path: Path) -> SessionFolders:
    made = SessionFolders(tmp_path)
    made.make_root()
    return made


@pytest.fixture
def folder(folders: SessionFolders) -> SessionFolder:
    made = folders.of("0123456789abcdef")
    made.make(UID, GID)
    return made


def test_folder_gives_the_session_its_store_and_nothing_else(folder: SessionFolder) -> None:
    for top in (folder.workspace, folder.home):
        assert (top.stat().st_uid, top.stat().st_gid) == (UID, GID)
    for ours in (folder.path, folder.run, folder.store):
        assert ours.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert not folder.run.stat().st_mode & 0o022


def test_folder_made_again_keeps_what_the_session_wrote(folder: SessionFolder) -> None:
    (folder.workspace / "f").write_text("kept")
    folder.workspace.chmod(0o700)
    folder.make(UID, GID)
    assert (folder.workspace / "f").read_text() == "kept"
    assert stat.S_IMODE(folder.workspace.stat().st_mode) == 0o700


def test_s18_secret_is_readable_by_the_sessions_user_alone(folder: SessionFolder) -> None:
    folder.write_secret("first", UID, GID)
    folder.write_secret("second", UID, GID)
    found = folder.secret.stat()
    assert folder.secret.read_text() == "second"
    assert stat.S_IMODE(found.st_mode) == 0o400
    assert found.st_uid == UID
    folder.remove_secret()
    folder.remove_secret()
    assert not folder.secret.exists()


async def test_s10_hostile_tree_goes_without_following_its_links(
    folders: SessionFolders, folder: SessionFolder, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (folder.workspace / "link").symlink_to(outside)
    (folder.home / "link").symlink_to(outside / "file")
    os.mkfifo(folder.workspace / "fifo")
    inside = os.open(folder.workspace, os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=inside)
        deeper = os.open("d", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)
    (folder.workspace / "-rf").mkdir(mode=0)
    assert folders.names() == {"0123456789abcdef"}
    await folder.remove()
    assert folders.names() == set()
    assert (outside / "file").read_text() == "kept"
    await folder.remove()


async def test_removal_goes_on_behind_whoever_stops_waiting(
    folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.of("0123456789abcdef")
    folder.make(os.geteuid(), os.getegid())
    real_remove = SessionFolder.remove
    go_on = asyncio.Event()
    runs = []

    async def slow(self: SessionFolder) -> None:
        runs.append(self.path)
        await go_on.wait()
        await real_remove(self)

    monkeypatch.setattr(SessionFolder, "remove", slow)
    monkeypatch.setattr("sandboxd.backends.folders.WAIT_S", 0.01)
    monkeypatch.setattr("sandboxd.backends.folders.JOIN_S", 0.01)
    for _ in range(2):
        with pytest.raises(SandboxdError, match="not removed yet"):
            await folders.remove("0123456789abcdef")
    go_on.set()
    monkeypatch.setattr("sandboxd.backends.folders.JOIN_S", 20.0)
    await folders.remove("0123456789abcdef")
    assert folders.names() == set()
    assert len(runs) == 1


async def test_stop_ends_a_removal_for_the_next_daemon(
    folders: SessionFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.of("0123456789abcdef").make(os.geteuid(), os.getegid())

    begun = asyncio.Event()

    async def endless(self: SessionFolder) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(SessionFolder, "remove", endless)
    waiting = asyncio.create_task(folders.remove("0123456789abcdef"))
    await begun.wait()
    await folders.stop()
    with pytest.raises(SandboxdError, match="not removed yet"):
        await waiting


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "/etc", "a\0b", "x" * 65, "-rf", "a\n"])
def test_resource_id_that_could_name_something_else_is_refused(
    folders: SessionFolders, name: str
) -> None:
    with pytest.raises(ValueError, match="no resource id"):
        folders.of(name)


def test_names_of_a_state_folder_without_sandboxes_are_none(tmp_path: Path) -> None:
    assert SessionFolders(tmp_path / "nowhere").names() == set()
