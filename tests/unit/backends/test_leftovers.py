"""What is found of a worker and let go: mounts and loop devices for real, the engine played."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends import leftovers, mounts
from sandboxd.backends.engine import ContainerEntry, Engine, EngineRefused, LabelledEntry
from sandboxd.backends.folders import SessionFolders
from sandboxd.backends.leftovers import Leftovers, remove_half_made
from sandboxd.errors import SandboxdError
from tests import machine

WORKER = "w-1"


class ListedEngine(Engine):
    """Lists what a test puts there, for the label that is asked for, and counts."""

    def __init__(self) -> None:
        # Nothing of the real one is used: it would look for an engine.
        self.all_containers: dict[str, dict[str, str]] = {}
        self.all_volumes: dict[str, dict[str, str]] = {}
        self.all_networks: dict[str, dict[str, str]] = {}
        self.refuses = False
        self.asked: list[str] = []

    async def containers(self, labels: list[str]) -> list[ContainerEntry]:
        self.asked.append("containers")
        found = _with(self.all_containers, labels)
        return [ContainerEntry(entry.id, entry.labels, False) for entry in found]

    async def volumes(self, labels: list[str]) -> list[LabelledEntry]:
        self.asked.append("volumes")
        if self.refuses:
            raise EngineRefused(500, "a driver fails")
        return _with(self.all_volumes, labels)

    async def networks(self, labels: list[str]) -> list[LabelledEntry]:
        self.asked.append("networks")
        return _with(self.all_networks, labels)

    async def remove_volume(self, name: str) -> None:
        if self.refuses:
            raise EngineRefused(409, "volume is in use")
        self.all_volumes.pop(name, None)

    async def remove_network(self, network: str) -> None:
        self.all_networks.pop(network, None)


def _with(there: dict[str, dict[str, str]], labels: list[str]) -> list[LabelledEntry]:
    wanted = dict(label.split("=", 1) for label in labels)
    return [
        LabelledEntry(name, held) for name, held in there.items() if wanted.items() <= held.items()
    ]


def owned_by(worker: str, resource: str) -> dict[str, str]:
    return {"sandboxd.worker": worker, "sandboxd.resource": resource}


@pytest.fixture
def engine() -> ListedEngine:
    return ListedEngine()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """As the kernel's tables name it."""
    return tmp_path.resolve()


@pytest.fixture
def folders(root: Path) -> Iterator[SessionFolders]:
    made = SessionFolders(root)
    made.make_root()
    yield made
    for name in ("s", "elsewhere"):
        mounts.detach(root / name)


@pytest.fixture
def foreign(root: Path) -> Iterator[str]:
    """A loop device beside the state folder's sessions."""
    (root / "elsewhere").mkdir()
    device = attach(root / "elsewhere" / "foreign.img")
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture
def found(engine: ListedEngine, folders: SessionFolders) -> Leftovers:
    return Leftovers(engine, folders, WORKER)


async def test_resources_are_those_of_the_own_label_and_the_own_folder(
    engine: ListedEngine, folders: SessionFolders, found: Leftovers, tmp_path: Path
) -> None:
    engine.all_containers = {
        "c1": owned_by(WORKER, "container"),
        "c2": owned_by("w-2", "foreign-container"),
        "c3": {},
    }
    engine.all_volumes = {
        "v1": owned_by(WORKER, "volume"),
        "v2": owned_by("w-2", "foreign-volume"),
    }
    engine.all_networks = {
        "n1": owned_by(WORKER, "network"),
        "n2": owned_by("w-2", "foreign-network"),
    }
    folders.of("folder").path.mkdir()
    (tmp_path / "s" / ".hidden").mkdir()
    assert await found.resources() == {"container", "volume", "network", "folder"}


async def test_volumes_and_networks_are_listed_at_first_and_then_now_and_then(
    engine: ListedEngine, found: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        await found.resources()
    assert engine.asked.count("containers") == 5
    assert (engine.asked.count("volumes"), engine.asked.count("networks")) == (1, 1)
    monkeypatch.setattr(leftovers, "LABELLED_REST_S", 0.0)
    engine.all_volumes = {"v": owned_by(WORKER, "late")}
    assert await found.resources() == {"late"}


async def test_removal_takes_what_the_resource_has_and_nothing_else(
    engine: ListedEngine, found: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "LABELLED_REST_S", 0.0)
    engine.all_volumes = {
        "v1": owned_by(WORKER, "gone"),
        "v2": owned_by(WORKER, "kept"),
        "v3": owned_by("w-2", "gone"),
    }
    engine.all_networks = {"n1": owned_by(WORKER, "gone")}
    await found.resources()
    await found.remove_labelled("gone")
    await found.remove_labelled("never-there")
    assert set(engine.all_volumes) == {"v2", "v3"}
    assert engine.all_networks == {}
    assert await found.resources() == {"kept"}


async def test_volume_in_use_is_told_and_found_again(
    engine: ListedEngine, found: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "LABELLED_REST_S", 0.0)
    engine.all_volumes = {"v1": owned_by(WORKER, "busy")}
    engine.all_networks = {"n1": owned_by(WORKER, "busy")}
    await found.resources()
    engine.refuses = True
    with pytest.raises(SandboxdError) as refused:
        await found.remove_labelled("busy")
    assert "v1" in refused.value.operator_text
    # The rest went all the same.
    assert engine.all_networks == {}
    engine.refuses = False
    assert await found.resources() == {"busy"}
    await found.remove_labelled("busy")
    assert await found.resources() == set()


async def test_driver_that_fails_hides_no_container(engine: ListedEngine, found: Leftovers) -> None:
    engine.refuses = True
    engine.all_containers = {"c1": owned_by(WORKER, "container")}
    assert await found.resources() == {"container"}


@machine.ROOT
async def test_mounts_of_a_session_go_with_its_folder_and_others_stay(
    folders: SessionFolders, root: Path
) -> None:
    ended, other = folders.of("ended"), folders.of("other")
    for folder in (ended, other):
        folder.make(0, 0)
        mount_tmpfs(folder.store / "workspace")
    # One in another, one over another, and a name that the kernel's table escapes.
    (ended.workspace / "in side").mkdir()
    mount_tmpfs(ended.workspace / "in side")
    mount_tmpfs(ended.workspace / "in side")
    # Next to it, with a name that begins like it.
    beside = root / "s" / "ended-not"
    beside.mkdir()
    mount_tmpfs(beside)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    mount_tmpfs(elsewhere)
    await folders.remove("ended")
    assert not ended.is_there()
    assert set(mounts.mounts_below(root)) == {elsewhere, beside, other.workspace}


@machine.ROOT
def test_state_folder_that_is_a_mount_of_its_own_is_no_leftover(tmp_path: Path) -> None:
    state = tmp_path / "elsewhere"
    state.mkdir()
    mount_tmpfs(state)
    try:
        folders = SessionFolders(state)
        folders.make_root()
        mount_tmpfs(state / "s")
        assert folders.names() == set()
        folders.of("one").path.mkdir()
        assert folders.names() == {"one"}
        assert mounts.detach(state.resolve() / "s" / "one") == []
        assert len(mounts.mounts_below(state.resolve())) == 2
    finally:
        mounts.detach(state.resolve())


@machine.LOOPS
async def test_loop_device_goes_with_its_file_or_after_it(
    folders: SessionFolders, root: Path, foreign: str
) -> None:
    folder = folders.of("ended")
    folder.make(0, 0)
    devices = [attach(folder.path / "store.img"), attach(folder.path / "gone.img")]
    (folder.path / "gone.img").unlink()
    below = root / "s" / "ended"
    assert {device.name for device in mounts.loops_below(below)} == {
        Path(device).name for device in devices
    }
    await folders.remove("ended")
    assert mounts.loops_below(root / "s") == []
    assert backing_file(foreign) == str(root / "elsewhere" / "foreign.img")


@machine.LOOPS
def test_loop_device_whose_folder_is_gone_is_still_found(
    folders: SessionFolders, tmp_path: Path
) -> None:
    folder = folders.of("ended")
    folder.path.mkdir()
    attach(folder.path / "store.img")
    (folder.path / "store.img").unlink()
    folder.path.rmdir()
    assert folders.names() == {"ended"}
    assert mounts.detach(folder.path.resolve()) == []
    assert folders.names() == set()


@machine.LOOPS
def test_loop_device_of_the_same_path_elsewhere_is_not_ours(
    folders: SessionFolders, root: Path
) -> None:
    """As a daemon in a container has it, whose state folder is called as ours is."""
    image = root / "s" / "mine" / "store.img"
    script = (
        f"mount -t tmpfs -o size=8m none {root}/s && mkdir {image.parent} && "
        f"truncate -s 1M {image} && losetup --find --show {image}"
    )
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{script}; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as elsewhere:
        assert elsewhere.stdout is not None
        foreign = elsewhere.stdout.readline().strip()
        try:
            for change in ("no such file", "another one"):
                if change == "another one":
                    folders.of("mine").path.mkdir()
                    image.touch()
                assert mounts.loops_below(image.parent) == []
                assert mounts.detach(image.parent) == []
                assert backing_file(foreign) == str(image)
        finally:
            subprocess.run(["losetup", "--detach", foreign], check=True)
            elsewhere.communicate("\n")


def test_what_a_daemon_that_died_had_half_made_is_removed(tmp_path: Path) -> None:
    half = tmp_path / "toolbox" / ".abc.0011"
    half.mkdir(parents=True)
    (half / "file").write_text("x")
    whole = tmp_path / "toolbox" / "abc"
    whole.mkdir()
    (tmp_path / ".worker-id.0011").write_text("x")
    (tmp_path / "worker-id").write_text("kept")
    remove_half_made(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toolbox", "worker-id"]
    assert [path.name for path in (tmp_path / "toolbox").iterdir()] == ["abc"]


def mount_tmpfs(path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], check=True)


def attach(image: Path) -> str:
    """A loop device of a new file."""
    with image.open("wb") as file:
        file.truncate(1 << 20)
    done = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def backing_file(device: str) -> str:
    return Path("/sys/block", Path(device).name, "loop/backing_file").read_text().strip()
