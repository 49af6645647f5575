"""What a sandbox leaves in its tree, and what of it reaches the host."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from orchestrator.config import WorkspaceSettings
from orchestrator.errors import WorkspaceError
from orchestrator.sandbox import Sandbox, TreeEntry
from orchestrator.workspace.copy_in import copy_in
from orchestrator.workspace.copy_out import CopyOut
from orchestrator.workspace.host_tree import TAKEN, HostTree
from orchestrator.workspace.names import Parts
from orchestrator.workspace.snapshot import Snapshot
from tests.unit.orchestrator.folder_adapter import FolderAdapter


@dataclass
class Trip:
    """A workspace on its way in and out. `box` is the sandbox's tree."""

    host: Path
    box: Path
    outside: Path
    adapter: FolderAdapter
    sandbox: Sandbox
    tree: HostTree
    settings: dict[str, Any] = field(default_factory=dict)
    snapshot: Snapshot = field(default_factory=Snapshot)

    async def go_in(self) -> Snapshot:
        self.snapshot = await copy_in(self.tree, self.sandbox, WorkspaceSettings(**self.settings))
        return self.snapshot

    async def come_out(self, *, dry_run: bool = False) -> CopyOut:
        limits = WorkspaceSettings(**self.settings)
        out = CopyOut(self.tree, self.sandbox, limits, self.snapshot)
        await out.run(dry_run=dry_run)
        return out


def put(top: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def listing(top: Path) -> dict[str, str]:
    """Every file with its content, every link with its target, empty directories as `/`."""
    found: dict[str, str] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text()
        elif path.is_dir() and not any(path.iterdir()):
            found[name] = "/"
    return found


def changes(out: CopyOut) -> list[tuple[str, str]]:
    return sorted((change.kind, change.path) for change in out.changes)


def refused(out: CopyOut) -> dict[str, str]:
    return {fact.path: fact.why for fact in out.refused}


@pytest.fixture(params=["versions listed", "contents read"])
async def trip(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Trip]:
    host, box, outside = tmp_path / "host", tmp_path / "box", tmp_path / "outside"
    for folder in (host, box, outside):
        folder.mkdir()
    put(outside, {"secret": "not yours"})
    async with FolderAdapter(box, tmp_path / "s") as adapter:
        adapter.versions_listed = request.param == "versions listed"
        async with Sandbox(adapter.target, "", 5) as sandbox:
            with HostTree(host) as tree:
                yield Trip(host, box, outside, adapter, sandbox, tree)


# --- In ----------------------------------------------------------------------


async def test_everything_goes_in(trip: Trip) -> None:
    put(trip.host, {"a": "1", "d/e/f.py": "2", ".git/config": "3", ".hidden": "4", "~x": "5"})
    (trip.host / "empty/inner").mkdir(parents=True)
    (trip.host / "d/link").symlink_to("e/f.py")
    (trip.host / "d/run.sh").write_text("#!/bin/sh\n")
    (trip.host / "d/run.sh").chmod(0o755)
    (trip.host / "-n é\n").write_text("odd name")
    snapshot = await trip.go_in()
    assert listing(trip.box) == listing(trip.host)
    assert (trip.box / "d/run.sh").stat().st_mode & 0o777 == 0o755
    assert (snapshot.files, snapshot.left) == (7, [])


async def test_what_cannot_go_in_is_named_and_never_removed(trip: Trip) -> None:
    put(trip.host, {"a": "1"})
    os.mkfifo(trip.host / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(trip.host)
        listener.bind("sock")
        os.chdir(here)
    (trip.host / "absolute").symlink_to("/etc/passwd")
    (trip.host / "up").symlink_to("../outside/secret")
    (trip.host / os.fsdecode(b"\xff")).write_text("not UTF-8")
    snapshot = await trip.go_in()
    assert len(snapshot.left) == 5
    out = await trip.come_out()
    assert (changes(out), out.refused) == ([], [])
    assert len(list(trip.host.iterdir())) == 6


@pytest.mark.parametrize("bound", [{"files_max": 3}, {"bytes_max": 10}])
async def test_workspace_over_a_bound_is_refused(trip: Trip, bound: dict[str, int]) -> None:
    put(trip.host, {f"f{n}": "abcdef" for n in range(4)})
    trip.settings.update(bound)
    with pytest.raises(WorkspaceError, match=str(next(iter(bound.values())))):
        await trip.go_in()


async def test_file_that_grows_over_the_bound_while_it_is_sent_is_refused(trip: Trip) -> None:
    put(trip.host, {"a": "abcdef"})
    trip.settings["bytes_max"] = 10
    opened = trip.tree.open_file

    def grown(parts: Parts) -> BinaryIO:
        (trip.host / "a").write_text("x" * 100)
        return opened(parts)

    trip.tree.open_file = grown  # type: ignore[method-assign]
    with pytest.raises(WorkspaceError, match="grows while it is copied"):
        await trip.go_in()


async def test_workspace_that_cannot_be_read_is_named(trip: Trip) -> None:
    put(trip.host, {"d/a": "1"})

    def gone(parts: Parts) -> BinaryIO:
        raise OSError(errno.EIO, "Input/output error", "a")

    trip.tree.open_file = gone  # type: ignore[method-assign]
    with pytest.raises(WorkspaceError, match="cannot read the workspace: `a`: Input/output error"):
        await trip.go_in()


# --- Out: what should come ---------------------------------------------------


async def test_changes_of_every_kind_come_out(trip: Trip) -> None:
    put(trip.host, {"same": "1", "changed": "old", "gone": "x", "d/gone": "y", "swap": "file",
                    "tree/leaf": "z", "mode.sh": "m"})  # fmt: skip
    (trip.host / "changed").chmod(0o640)
    await trip.go_in()
    (trip.box / "changed").write_text("new")
    (trip.box / "gone").unlink()
    (trip.box / "d/gone").unlink()
    (trip.box / "d").rmdir()
    (trip.box / "swap").unlink()
    put(trip.box, {"swap/inner": "now a directory", "added/deep/file": "fresh"})
    (trip.box / "tree/leaf").unlink()
    (trip.box / "tree").rmdir()
    (trip.box / "tree").write_text("now a file")
    (trip.box / "mode.sh").chmod(0o755)
    (trip.box / "link").symlink_to("added/deep/file")
    (trip.box / "bare").mkdir()
    preview = await trip.come_out(dry_run=True)
    before = listing(trip.host)
    assert before["changed"] == "old"
    out = await trip.come_out()
    assert changes(preview) == changes(out)
    assert out.refused == preview.refused == []
    assert listing(trip.host) == listing(trip.box)
    assert (trip.host / "changed").stat().st_mode & 0o777 == 0o640
    assert (trip.host / "mode.sh").stat().st_mode & 0o777 == 0o755


async def test_same_size_same_time_change_is_noticed(trip: Trip) -> None:
    put(trip.host, {"a": "old"})
    await trip.go_in()
    status = (trip.box / "a").stat()
    (trip.box / "a").write_text("new")
    os.utime(trip.box / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert changes(await trip.come_out()) == [("changed", "a")]
    assert listing(trip.host) == {"a": "new"}


async def test_nothing_changed_is_nothing_done(trip: Trip) -> None:
    put(trip.host, {"a": "1", "d/b": "2"})
    (trip.host / "l").symlink_to("d/b")
    await trip.go_in()
    out = await trip.come_out()
    assert (out.changes, out.refused, out.stayed) == ([], [], {})


# --- Out: what must not come -------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../outside/secret", "d/../../outside/secret", "hop/secret", ".git/config",
     "./.GIT/hooks/pre-commit"],
)  # fmt: skip
async def test_link_that_leads_elsewhere_is_not_made(trip: Trip, target: str) -> None:
    put(trip.host, {"d/keep": "1", ".git/config": "2"})
    await trip.go_in()
    (trip.box / "hop").symlink_to("..")
    (trip.box / "evil").symlink_to(target)
    out = await trip.come_out()
    assert {"evil", "hop"} == set(refused(out))
    assert not (trip.host / "evil").is_symlink()


async def test_link_through_a_link_that_was_left_on_the_host_is_not_made(trip: Trip) -> None:
    (trip.host / "data").symlink_to(trip.outside)
    snapshot = await trip.go_in()
    assert [fact.path for fact in snapshot.left] == ["data"]
    # In the sandbox it dangles; on the host it would lead outside.
    (trip.box / "evil").symlink_to("data/secret")
    put(trip.box, {"d/x": "1"})
    (trip.box / "d/up").symlink_to("../data")
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    assert set(refused(out)) == set(refused(preview)) == {"evil", "d/up"}
    assert listing(trip.host) == {"data": f"-> {trip.outside}", "d/x": "1"}


async def test_file_replaced_by_a_link_outside_leaves_the_file(trip: Trip) -> None:
    put(trip.host, {"a": "mine", "d/b": "mine too"})
    await trip.go_in()
    (trip.box / "a").unlink()
    (trip.box / "a").symlink_to("/etc/passwd")
    (trip.box / "d/b").unlink()
    (trip.box / "d").rmdir()
    (trip.box / "d").symlink_to("/etc")
    out = await trip.come_out()
    assert set(refused(out)) == {"a", "d"}
    assert listing(trip.host) == {"a": "mine", "d/b": "mine too"}


async def test_nothing_is_written_through_a_link_of_the_host(trip: Trip) -> None:
    put(trip.host, {"d/a": "1"})
    await trip.go_in()
    # Meanwhile the person moved the directory away and put a link in its place.
    (trip.host / "d").rename(trip.outside / "d")
    (trip.host / "d").symlink_to(trip.outside / "d")
    put(trip.box, {"d/a": "changed", "d/new": "added"})
    out = await trip.come_out()
    assert set(refused(out)) == {"d/a", "d/new"}
    assert listing(trip.outside) == {"d/a": "1", "secret": "not yours"}


@pytest.mark.parametrize(
    "name", [".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".git./x", "d/.git"]
)
async def test_git_is_left_alone_at_any_depth(trip: Trip, name: str) -> None:
    put(trip.host, {".git/config": "mine"})
    await trip.go_in()
    put(trip.box, {name: "evil"})
    (trip.box / ".git/config").unlink(missing_ok=True)
    out = await trip.come_out()
    assert listing(trip.host)[".git/config"] == "mine"
    assert [path for path in listing(trip.host) if "git" in path.lower()] == [".git/config"]
    assert out.stayed[".git"] >= 1


async def test_self_executing_files_stay_unless_asked_for(trip: Trip) -> None:
    put(trip.host, {"a": "1"})
    await trip.go_in()
    put(trip.box, {".envrc": "evil", "x/.vscode/tasks.json": "evil", "p/__pycache__/m.pyc": "evil"})
    out = await trip.come_out()
    assert out.stayed == {"self-executing files": 2, "caches": 1}
    assert set(listing(trip.host)) == {"a", "p", "x"}
    trip.settings["take_self_executing"] = True
    await trip.come_out()
    assert set(listing(trip.host)) == {"a", "p", ".envrc", "x/.vscode/tasks.json"}


async def test_special_files_and_special_modes_do_not_come_out(trip: Trip) -> None:
    put(trip.host, {"a": "1", "b": "2"})
    await trip.go_in()
    os.mkfifo(trip.box / "pipe")
    (trip.box / "a").unlink()
    os.mkfifo(trip.box / "a")
    put(trip.box, {"suid": "#!/bin/sh\n"})
    (trip.box / "suid").chmod(0o6777)
    (trip.box / "b").chmod(0o6755)
    out = await trip.come_out()
    assert set(refused(out)) == {"a", "pipe"}
    assert listing(trip.host) == {"a": "1", "b": "2", "suid": "#!/bin/sh\n"}
    for name in ("suid", "b"):
        mode = (trip.host / name).stat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
        assert mode & stat.S_IXUSR


async def test_names_with_control_characters_are_taken_as_they_are(trip: Trip) -> None:
    await trip.go_in()
    put(trip.box, {"line\nbreak\x1b[2J": "odd"})
    out = await trip.come_out()
    assert listing(trip.host) == {"line\nbreak\x1b[2J": "odd"}
    assert out.refused == []


async def test_name_that_is_not_utf8_is_refused(trip: Trip) -> None:
    await trip.go_in()
    (trip.box / os.fsdecode(b"bad\xff")).write_text("x")
    out = await trip.come_out()
    assert list(refused(out).values()) == ["the name is not UTF-8"]
    assert listing(trip.host) == {}


@pytest.mark.parametrize(
    "bound", [{"out_file_bytes_max": 50}, {"out_bytes_max": 50}, {"out_changes_max": 1}]
)
async def test_changes_over_a_bound_are_refused(trip: Trip, bound: dict[str, int]) -> None:
    await trip.go_in()
    put(trip.box, {"big": "x" * 100, "big2": "y" * 100})
    trip.settings.update(bound)
    out = await trip.come_out()
    assert out.refused
    assert listing(trip.host) == {}


async def test_preview_counts_the_total_as_the_copy_does(trip: Trip) -> None:
    put(trip.host, {"b": "base"})
    await trip.go_in()
    put(trip.box, {"a": "x" * 40, "b": "y" * 40, "c": "z" * 40, "d": "w" * 20, "e": ""})
    # It is refused, but was read all the same: it counts.
    put(trip.host, {"b": "mine"})
    trip.settings["out_bytes_max"] = 100
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    assert changes(preview) == changes(out) == [("added", "a"), ("added", "d"), ("added", "e")]
    assert preview.bytes == out.bytes == 100
    assert refused(preview) == refused(out)
    assert refused(out)["c"] == "with it the changes are over 100 B in all"


async def test_file_that_is_larger_than_listed_does_not_pass_the_total(trip: Trip) -> None:
    await trip.go_in()
    put(trip.box, {"a": "x" * 60, "b": "y" * 30})
    listed = trip.sandbox.tree

    async def understated() -> AsyncIterator[TreeEntry]:
        async for entry in listed():
            yield replace(entry, size=1)

    trip.sandbox.tree = understated  # type: ignore[method-assign]
    trip.settings["out_bytes_max"] = 50
    out = await trip.come_out()
    assert refused(out) == {"a": "with it the changes are over 50 B in all"}
    assert listing(trip.host) == {"b": "y" * 30}


async def test_unfinished_listing_removes_nothing(trip: Trip) -> None:
    put(trip.host, {f"f{n}": "x" for n in range(6)})
    await trip.go_in()
    trip.settings["out_entries_max"] = 3
    out = await trip.come_out()
    assert len(listing(trip.host)) == 6
    assert any(fact.conflict for fact in out.refused)


# --- Out: the host changed meanwhile -----------------------------------------


async def test_host_that_changed_meanwhile_is_a_conflict(trip: Trip) -> None:
    put(trip.host, {"a": "base", "b": "base", "c": "base"})
    await trip.go_in()
    put(trip.box, {"a": "theirs", "new": "theirs"})
    (trip.box / "b").unlink()
    (trip.box / "c").write_text("theirs")
    put(trip.host, {"a": "mine", "b": "mine", "new": "mine"})
    (trip.host / "c").unlink()
    mine = listing(trip.host)
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    assert set(refused(out)) == set(refused(preview)) == {"a", "b", "c", "new"}
    assert all(fact.conflict for fact in out.refused)
    assert listing(trip.host) == mine


async def test_preview_refuses_what_lies_in_a_directory_that_cannot_be_made(trip: Trip) -> None:
    (trip.host / "outlink").symlink_to("/etc/passwd")
    put(trip.host, {"gone/a": "1"})
    await trip.go_in()
    put(trip.box, {"outlink/f": "1", "outlink/d/f": "2", "late/f": "3", "gone/d/f": "4"})
    # The first was there all the time and never went in; the second came meanwhile.
    put(trip.host, {"late": "mine"})
    (trip.host / "gone/a").unlink()
    (trip.host / "gone").rmdir()
    mine = listing(trip.host)
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    assert (changes(preview), changes(out)) == ([], [])
    assert refused(preview) == refused(out)
    assert set(refused(out)) == {
        "outlink", "outlink/f", "outlink/d", "outlink/d/f", "late", "late/f", "gone/d", "gone/d/f"
    }  # fmt: skip
    assert refused(out)["outlink"] == refused(out)["late"] == TAKEN
    assert listing(trip.host) == mine


@pytest.mark.parametrize("made", ["file", "link"])
async def test_place_that_the_host_has_taken_is_called_so_in_both_runs(
    trip: Trip, made: str
) -> None:
    (trip.host / "outlink").symlink_to("/etc/passwd")
    put(trip.host, {"d/a": "1"})
    await trip.go_in()
    if made == "file":
        put(trip.box, {"outlink": "theirs"})
    else:
        (trip.box / "outlink").symlink_to("d/a")
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    assert refused(preview) == refused(out) == {"outlink": TAKEN}


async def test_preview_names_the_conflict_in_a_directory_that_would_go(trip: Trip) -> None:
    put(trip.host, {"d/a": "base"})
    await trip.go_in()
    (trip.box / "d/a").unlink()
    (trip.box / "d").rmdir()
    put(trip.host, {"d/a": "mine"})
    preview = await trip.come_out(dry_run=True)
    out = await trip.come_out()
    for found in (preview, out):
        assert [fact.path for fact in found.refused if fact.conflict] == ["d/a"]
    assert listing(trip.host) == {"d/a": "mine"}


async def test_host_that_has_the_change_already_is_no_conflict(trip: Trip) -> None:
    put(trip.host, {"a": "base"})
    await trip.go_in()
    put(trip.box, {"a": "same"})
    put(trip.host, {"a": "same"})
    out = await trip.come_out()
    assert out.refused == []


async def test_directory_with_something_of_the_hosts_own_stays(trip: Trip) -> None:
    put(trip.host, {"d/a": "1"})
    await trip.go_in()
    (trip.box / "d/a").unlink()
    (trip.box / "d").rmdir()
    put(trip.host, {"d/mine": "2"})
    out = await trip.come_out()
    assert listing(trip.host) == {"d/mine": "2"}
    assert not any(fact.conflict for fact in out.refused)


@pytest.mark.parametrize("step", ["stage_file", "commit", "remove"])
async def test_interrupted_copy_out_finishes_its_step_and_says_so(trip: Trip, step: str) -> None:
    put(trip.host, {"gone": "x"})
    await trip.go_in()
    (trip.box / "gone").unlink()
    put(trip.box, {"new": "fresh"})
    begun, go_on = threading.Event(), threading.Event()
    real = getattr(trip.tree, step)

    def slow(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        return real(*given)

    setattr(trip.tree, step, slow)
    out = CopyOut(trip.tree, trip.sandbox, WorkspaceSettings(), trip.snapshot)
    running = asyncio.ensure_future(out.run(dry_run=False))
    assert await asyncio.to_thread(begun.wait, 20)
    running.cancel()
    # The cancel reaches the task before its step may end.
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    done = [("removed", "gone")]
    if step == "commit":
        done.insert(0, ("added", "new"))
    assert changes(out) == done
    assert set(listing(trip.host)) == ({"new"} if step == "commit" else set())


async def test_nothing_unfinished_is_left_on_the_host(trip: Trip) -> None:
    put(trip.host, {"a": "base"})
    await trip.go_in()
    put(trip.box, {"a": "theirs", "new": "fresh"})
    put(trip.host, {"a": "mine"})
    (trip.box / "l").symlink_to("new")
    await trip.come_out()
    assert set(listing(trip.host)) == {"a", "new", "l"}
