"""Which files are tried as shells; `tests/integration/test_any_image.py` runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.guest import environment, shells
from sandboxd.guest.ops import Machine


def script(path: Path, content: str, mode: int = 0o755) -> None:
    path.write_text(content)
    path.chmod(mode)


def names(machine: Machine) -> dict[str, str]:
    return dict(shells._candidates(machine))


def machine(path: str) -> Machine:
    return Machine("container", "/", "/", base_env={"PATH": path})


def test_bash_comes_before_sh_and_the_usual_place_before_the_path(tmp_path: Path) -> None:
    script(tmp_path / "bash", "#!/bin/sh\n")
    script(tmp_path / "sh", "#!/bin/sh\n")
    found = [path for path in names(machine(f"{tmp_path}/")) if path.startswith(("/bin/", "/tmp"))]
    assert found == ["/bin/bash", f"{tmp_path}/bash", "/bin/sh", f"{tmp_path}/sh"]


def test_relative_folders_of_the_path_hold_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bash", "#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    assert all(os.path.isabs(path) for path in names(machine(".::bash:")))


def test_what_has_a_shells_name_and_is_none_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bash").mkdir()
    script(tmp_path / "sh", "#!/bin/sh\n", 0o644)
    other = tmp_path / "other"
    other.mkdir()
    (other / "bash").symlink_to("/nowhere")
    found = names(machine(f"{tmp_path}:{other}"))
    assert found[f"{tmp_path}/bash"] == "no executable file"
    # Root may read everything, and run nothing that has no bit for it.
    assert found[f"{tmp_path}/sh"] == "no executable file"
    assert found[f"{other}/bash"] == "No such file or directory"


def test_text_names_what_was_tried_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "_faults", [])
    assert "has no bash and no sh" in shells.missing_text()
    monkeypatch.setattr(shells, "_faults", [f"/bin/sh{number}: x" for number in range(1000)])
    assert "/bin/sh0: x; /bin/sh1: x" in shells.missing_text()
    assert len(shells.missing_text()) < 700


@pytest.mark.parametrize(("image", "wanted"), [("", environment.PATH_DEFAULT), ("/x", "/x")])
def test_path_of_commands_is_the_images_unless_it_is_empty(image: str, wanted: str) -> None:
    assert environment.command_environment(machine(image))["PATH"] == wanted
