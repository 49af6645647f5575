"""Unpacking the toolbox: plain files and folders below one name, or nothing."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.backends import toolbox


def archive(*members: tuple[str, bytes, bytes, int], link: str = "") -> Iterator[bytes]:
    """A tar stream in pieces of odd sizes; a member is name, type, content, mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, content, mode in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.mode, member.linkname = kind, len(content), mode, link
            tar.addfile(member, io.BytesIO(content))
    raw = out.getvalue()
    return iter([raw[start : start + 777] for start in range(0, len(raw), 777)])


FILE, FOLDER = tarfile.REGTYPE, tarfile.DIRTYPE


def test_toolbox_is_unpacked_with_plain_modes(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    chunks = archive(
        ("toolbox/", FOLDER, b"", 0o777),
        ("toolbox/bin/", FOLDER, b"", 0o777),
        ("toolbox/bin/rg", FILE, content, 0o6777),
        ("toolbox/toolbox.json", FILE, b"{}", 0o666),
    )
    toolbox._unpack(chunks, tmp_path)
    rg = tmp_path / "bin" / "rg"
    assert rg.read_bytes() == content
    assert stat.S_IMODE(rg.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "toolbox.json").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("toolbox/../../evil", FILE),
        ("/etc/evil", FILE),
        ("other/evil", FILE),
        ("toolbox/link", tarfile.SYMTYPE),
        ("toolbox/link", tarfile.LNKTYPE),
        ("toolbox/device", tarfile.CHRTYPE),
        ("toolbox/fifo", tarfile.FIFOTYPE),
    ],
)
def test_archive_with_anything_else_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    target = tmp_path / "inner"
    target.mkdir()
    with pytest.raises(ValueError, match=r"strange name|neither a file"):
        toolbox._unpack(archive((name, kind, b"", 0o644), link="/etc/passwd"), target)
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert list(target.iterdir()) == []


def test_archive_over_its_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "TOOLBOX_BYTES_MAX", 1000)
    with pytest.raises(ValueError, match="over its bound"):
        toolbox._unpack(archive(("toolbox/f", FILE, b"x" * 1001, 0o644)), tmp_path)


def test_archive_that_ends_early_is_refused(tmp_path: Path) -> None:
    chunks = list(archive(("toolbox/f", FILE, b"x" * 5000, 0o644)))[:3]
    with pytest.raises(tarfile.TarError):
        toolbox._unpack(iter(chunks), tmp_path)
