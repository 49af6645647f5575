"""The toolbox on this worker: exported from its image once, by digest.

    <state>/toolbox/<digest>/    root-owned, never changed, mounted read-only

What is exported is the project's own image; still, only plain files and folders
below the one folder are taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sandboxd.backends.docker_spec import TOOLBOX
from sandboxd.backends.engine import Engine, EngineNotFound, EngineRefused
from sandboxd.errors import EXIT_ENGINE, EXIT_IMAGE, EXIT_STATE, StartupError
from sandboxd.limits import MIB

TOOLBOX_BYTES_MAX: Final = 256 * MIB
TOOLBOX_FILES_MAX: Final = 10_000
_RECORD: Final = "toolbox.json"
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})\Z")


@dataclass(frozen=True)
class Toolbox:
    """A toolbox that is there, and how its own record says to start what is inside."""

    path: Path
    digest: str
    guest_argv: tuple[str, ...]
    rg_argv: tuple[str, ...]


async def ensure_toolbox(
    engine: Engine, image: str, state_dir: Path, labels: Mapping[str, str]
) -> Toolbox:
    """Exports the toolbox where it is not there yet.

    `labels` go to the container that it is exported from, which never runs: should
    the daemon die meanwhile, the sweeper knows it by them.

    Raises `StartupError`: EXIT_IMAGE where the image is missing or is none of
    ours, EXIT_STATE where it cannot be written; and `EngineDown`.
    """
    try:
        found = await engine.image(image)
    except EngineNotFound:
        raise StartupError(
            f"the toolbox image `{image}` is missing; `make images` builds it", EXIT_IMAGE
        ) from None
    digest = str(found["Id"])
    named = _DIGEST.match(digest)
    if named is None:
        raise StartupError(f"the toolbox image has a strange id: `{digest[:100]}`", EXIT_IMAGE)
    path = state_dir / "toolbox" / named[1][:32]
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not _is_there(path):
            await _export(engine, digest, path, labels)
        record = json.loads((path / _RECORD).read_text(encoding="utf-8"))
    except (tarfile.TarError, ValueError) as error:
        raise StartupError(f"`{image}` holds no toolbox: {error}", EXIT_IMAGE) from None
    except EngineNotFound as error:
        text = f"`{image}` holds no toolbox: {error.operator_text}"
        raise StartupError(text, EXIT_IMAGE) from None
    except EngineRefused as error:
        text = f"the toolbox cannot be exported: {error.operator_text}"
        raise StartupError(text, EXIT_ENGINE) from None
    except OSError as error:
        raise StartupError(f"cannot keep the toolbox in `{path}`: {error}", EXIT_STATE) from None
    return Toolbox(path, digest, _argv(record, "argv", image), _argv(record, "rg", image))


def _is_there(path: Path) -> bool:
    return path.is_dir()


def _argv(record: Any, name: str, image: str) -> tuple[str, ...]:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, list) or not value or not all(isinstance(w, str) for w in value):
        raise StartupError(f"the record of `{image}` has no `{name}`", EXIT_IMAGE)
    return tuple(value)


async def _export(engine: Engine, digest: str, path: Path, labels: Mapping[str, str]) -> None:
    """Through a folder beside it and a rename, so that a half toolbox is never used."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    container = await engine.create(
        f"sandboxd-{secrets.token_hex(8)}",
        {"Image": digest, "NetworkDisabled": True, "Labels": dict(labels)},
    )
    try:
        fresh.mkdir(mode=0o755)
        await engine.export(container, TOOLBOX, lambda chunks: _unpack(chunks, fresh))
        try:
            fresh.rename(path)
        except OSError:
            # Another daemon's export came first; it is the same by its digest.
            if not _is_there(path):
                raise
    finally:
        await engine.remove(container)
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)


class _Chunks:
    """An iterator of bytes as the file that `tarfile` wants."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        out, self._rest = self._rest[:size], self._rest[size:]
        return out


def _unpack(chunks: Iterator[bytes], target: Path) -> None:
    """Writes what a toolbox archive holds. Raises `ValueError`, `tarfile.TarError`."""
    top = PurePosixPath(TOOLBOX).name
    files = size = 0
    with tarfile.open(fileobj=_Chunks(chunks), mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if not parts or parts[0] != top or ".." in parts:
                raise ValueError(f"a strange name in its archive: {member.name!r}")
            files, size = files + 1, size + member.size
            if files > TOOLBOX_FILES_MAX or size > TOOLBOX_BYTES_MAX:
                raise ValueError("its archive is over its bound")
            place = target.joinpath(*parts[1:])
            if member.isdir():
                place.mkdir(mode=0o755, exist_ok=True)
            elif member.isreg():
                source = archive.extractfile(member)
                assert source is not None
                with place.open("xb") as file:
                    shutil.copyfileobj(source, file)
                place.chmod(0o755 if member.mode & 0o100 else 0o644)
            else:
                raise ValueError(f"neither a file nor a folder: {member.name!r}")
    # Before the rename: after a crash of the host a whole folder is named, or none.
    os.sync()
