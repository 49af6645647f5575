"""The part of the image build that decides whether anything has to be built."""

import os
from pathlib import Path

import pytest

from images import build


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    folder = tmp_path / "guest"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__main__.py").write_text("def main() -> int:\n    return 0\n")
    (folder / "inner").mkdir()
    (folder / "inner/files.py").write_text("")
    (folder / "__pycache__/files.cpython-311.pyc").write_bytes(b"x")
    (folder / "README.md").write_text("about the guest")
    return folder


def digest(guest: Path, debian: str = "sha256:0") -> str:
    return build.digest_of(debian, list(build.context_files({"guest": guest})))


def test_context_of_a_folder_is_its_python_sources_in_a_fixed_order(guest: Path) -> None:
    names = [name for name, _ in build.context_files({"guest": guest, "a": guest / "README.md"})]
    assert names == ["a", "guest/__main__.py", "guest/inner/files.py"]


def test_digest_does_not_change_with_times_and_files_that_stay_out(guest: Path) -> None:
    before = digest(guest)
    os.utime(guest / "__main__.py", (1, 1))
    (guest / "README.md").write_text("more")
    assert digest(guest) == before


@pytest.mark.parametrize("changed", ["__main__.py", "inner/files.py", "inner/new.py"])
def test_digest_changes_with_the_content_of_any_source(guest: Path, changed: str) -> None:
    before = digest(guest)
    (guest / changed).write_text("answer = 42\n")
    assert digest(guest) != before


def test_digest_changes_with_a_name_and_with_the_debian_base(guest: Path) -> None:
    before = digest(guest)
    assert digest(guest, "sha256:1") != before
    (guest / "inner/files.py").rename(guest / "inner/paths.py")
    assert digest(guest) != before


def test_context_names_the_input_that_is_missing() -> None:
    with pytest.raises(build.BuildError, match=r"/sandboxd/no-such-guest` is not there") as caught:
        list(build.context_files({"guest": build.ROOT / "sandboxd/no-such-guest"}))
    assert caught.value.code == 3


def test_program_that_is_not_here_has_no_answer() -> None:
    assert build.ask("no-such-program-here", "--version") == ""


def test_question_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(build.BuildError, match="`sleep 30` gave no answer"):
        build.ask("sleep", "30")
