"""What can be seen of a session from outside: its row, and everything that it may leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sandboxd.sessions.records import State

_CGROUPS = Path("/sys/fs/cgroup")
_LOOPS = Path("/sys/block")


@dataclass(frozen=True)
class Row:
    """A session in the daemon's database that is not known to be gone."""

    session_id: str
    resource_id: str
    state: str
    generation: int


def rows(state_dir: Path) -> list[Row]:
    """Read beside the daemon, which may be dead or stopped."""
    database = state_dir / "state.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as connection:
        found = connection.execute(
            "SELECT session_id, resource_id, state, generation FROM sessions WHERE removed = 0"
        ).fetchall()
    return [Row(*each) for each in found]


def living(state_dir: Path) -> dict[str, Row]:
    """The rows of sessions that have not been deleted, by resource id."""
    deleted = State.DELETED.value
    return {row.resource_id: row for row in rows(state_dir) if row.state != deleted}


def folders(state_dir: Path) -> set[str]:
    """Resource ids that have a folder."""
    return {entry.name for entry in (state_dir / "s").iterdir()}


def left_on_host(folder: Path, containers: Iterable[str]) -> list[str]:
    """What is there of a session's folder and its containers, the engine's records aside."""
    found = [f"folder {folder}"] if folder.exists() else []
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {row.split()[4]}" for row in mounts if str(folder) in row.split()[4]]
    for loop in _LOOPS.glob("loop*/loop/backing_file"):
        if str(folder) in loop.read_text():
            found.append(f"loop device {loop.parent.parent.name}")
    for container in containers:
        # The folder of a cgroup goes last: while it is there, so may be processes.
        places = [*_CGROUPS.glob(f"*/docker/{container}"), *_CGROUPS.glob(f"docker/{container}")]
        found += [f"cgroup {place}" for place in places]
    return found
