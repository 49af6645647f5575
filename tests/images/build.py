"""Images that nobody would build for a sandbox, to prove that any image can be one.

An image is made once for its content: the tag is a digest of everything that goes into it.
No registry is asked. Trees are imported as they are, so that links, modes and absences are
exactly what the recipe says. The recipes are in `recipes.py`.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images import build as project

BASE: Final = "sandboxd/base:dev"
TOOLBOX: Final = "sandboxd/toolbox:dev"
REPOSITORY: Final = "sandboxd-test"
BUILD_S: Final = 180
ANSWER_S: Final = 60
VERSIONS_MAX: Final = 2
"""Older versions of an image than these are let go."""
_LOCK: Final = project.ROOT / ".build/test-images.lock"


@dataclass(frozen=True)
class Entry:
    """One thing in a tree: a folder, or a file with `content`, or a link to `target`."""

    path: str
    mode: int = 0o755
    content: bytes | None = None
    target: str | None = None


@dataclass(frozen=True)
class Tree:
    """An image of these entries and nothing else, and what its configuration says."""

    entries: tuple[Entry, ...]
    changes: tuple[str, ...] = ()
    """Lines of a Dockerfile."""


@dataclass(frozen=True)
class Layered:
    """An image built by a Dockerfile upon the project's base image, without a context."""

    dockerfile: str


Recipe = Tree | Layered


def folder(path: str, mode: int = 0o755) -> Entry:
    return Entry(path, mode)


def file(path: str, content: str | bytes, mode: int = 0o644) -> Entry:
    return Entry(path, mode, content.encode() if isinstance(content, str) else content)


def link(path: str, target: str) -> Entry:
    return Entry(path, target=target)


@functools.cache
def busybox_program() -> bytes:
    """The static busybox of the toolbox."""
    container = _docker("create", TOOLBOX).decode().strip()
    try:
        packed = _docker("cp", f"{container}:/.sandboxd/toolbox/bin/busybox", "-")
    finally:
        _docker("rm", container)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.extractfile("busybox")
        assert member is not None
        return member.read()


@functools.cache
def _tags() -> frozenset[str]:
    """What was there when the first image was asked for: one question instead of many."""
    listed = project.ask("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
    return frozenset(listed.split())


@functools.cache
def _base_id() -> str:
    return project.image_id(BASE)


def build(name: str, recipe: Recipe) -> str:
    """The tag of the image, which is built where it is not there yet."""
    if isinstance(recipe, Tree):
        content = _archive(recipe.entries)
        digest = hashlib.sha256(content + "\n".join(recipe.changes).encode())
    else:
        content = recipe.dockerfile.encode()
        digest = hashlib.sha256(content + _base_id().encode())
    repository = f"{REPOSITORY}/{name}"
    tag = f"{repository}:{digest.hexdigest()[:16]}"
    if tag in _tags():
        return tag
    with _one_builder():
        if project.image_id(tag):  # somebody else's build came first
            return tag
        if isinstance(recipe, Tree):
            changes = [f"--change={line}" for line in recipe.changes]
            _docker("import", *changes, "-", tag, stdin=content)
        else:
            command = project.build_command(tag, refresh=False)[1:]
            _docker(*command, "--quiet", "-", stdin=content, seconds_max=BUILD_S)
        listed = project.ask("docker", "image", "ls", "--format", "{{.Tag}}", repository)
        for old in listed.split()[VERSIONS_MAX:]:
            project.ask("docker", "rmi", f"{repository}:{old}")
    return tag


def _archive(entries: tuple[Entry, ...]) -> bytes:
    """The same bytes for the same entries."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.path.lstrip("/"))
            info.mode = entry.mode
            if entry.target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return packed.getvalue()


def _docker(*argv: str, stdin: bytes | None = None, seconds_max: float = ANSWER_S) -> bytes:
    done = subprocess.run(
        ["docker", *argv],
        input=stdin,
        env=project.build_environment(),
        capture_output=True,
        timeout=seconds_max,
        check=False,
    )
    if done.returncode != 0:
        words = (done.stdout[-2000:] + done.stderr[-2000:]).decode(errors="replace")
        raise RuntimeError(f"`docker {argv[0]}` ended with {done.returncode}: {words}")
    return done.stdout


@contextmanager
def _one_builder() -> Iterator[None]:
    Path(_LOCK).parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
