"""The package of the demo: fetched by pip at a pinned hash, unpacked, and broken in one place."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.workspace.names import BadName, parse

PINNED: Final = Path(__file__).with_name("package.txt")
FILES_MAX: Final = 1_000
BYTES_MAX: Final = 20_000_000
DOWNLOAD_TIMEOUT_S: Final = 120

BROKEN_FILE: Final = "toolz/itertoolz.py"
RIGHT: Final = "                if prev[mid] is no_pad:\n"
WRONG: Final = "                if prev[mid] is not no_pad:\n"


class DemoFailed(Exception):
    """The demo cannot go on; the text is for the person who started it."""


@dataclass(frozen=True)
class Package:
    """What the demo works on."""

    name: str
    """With its version, for people."""
    archive: Path


def fetch(cache: Path) -> Package:
    """The package, from the cache or from the package index."""
    pinned = re.search(r"^(\S+)==(\S+) .*?sha256:([0-9a-f]{64})", PINNED.read_text(), re.M | re.S)
    if pinned is None:
        raise DemoFailed(f"`{PINNED}` pins no package by its hash")
    name, version, digest = pinned.groups()
    cache.mkdir(parents=True, exist_ok=True)
    archive = _with_digest(cache, digest)
    if archive is None:
        # Downloaded aside and moved: another demo may be looking for it, or fetching it.
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _download(Path(folder))
            fetched = _with_digest(Path(folder), digest)
            if fetched is None:
                raise DemoFailed("the package could not be fetched: no archive has its hash")
            archive = fetched.replace(cache / fetched.name)
    return Package(f"{name} {version}", archive)


def _download(folder: Path) -> None:
    # Its setup.py is asked for metadata, with what is installed: no build environment is made.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    command += ["--dest", str(folder), "--requirement", str(PINNED)]
    try:
        fetched = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DemoFailed(
            f"the package could not be fetched in {DOWNLOAD_TIMEOUT_S} seconds"
        ) from None
    if fetched.returncode != 0:
        lines = fetched.stderr.strip().splitlines()
        raise DemoFailed(f"the package could not be fetched: {lines[-1] if lines else 'no reason'}")


def _with_digest(cache: Path, digest: str) -> Path | None:
    for archive in sorted(cache.glob("*.tar.gz")):
        if hashlib.sha256(archive.read_bytes()).hexdigest() == digest:
            return archive
    return None


def unpack(archive: Path, folder: Path) -> None:
    """Regular files only, under their own names, without the archive's top folder."""
    total = 0
    with tarfile.open(archive) as content:
        for count, member in enumerate(content):
            total += member.size
            if count > FILES_MAX or total > BYTES_MAX:
                raise DemoFailed(f"`{archive.name}` is larger than the demo expects")
            if not member.isfile():
                continue
            try:
                parts = parse(member.name.encode())[1:]
            except BadName as error:
                raise DemoFailed(f"`{archive.name}` holds a bad name: {error}") from None
            source = content.extractfile(member)
            if not parts or source is None:
                continue
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())


def break_it(folder: Path) -> None:
    """Inverts one condition. The package's own tests notice."""
    path = folder / BROKEN_FILE
    text = path.read_text(encoding="utf-8")
    if text.count(RIGHT) != 1:
        raise DemoFailed(f"`{BROKEN_FILE}` holds {text.count(RIGHT)} places to break, not one")
    path.write_text(text.replace(RIGHT, WRONG), encoding="utf-8")
