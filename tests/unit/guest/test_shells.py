"""Which files are tried as shells; `tests/integration/test_any_image.py` runs them."""

from __future__ import annotations

import os
import subprocess
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
    found = [
        path for path in names(machine(f"{tmp_path}/")) if path.startswith(("/bin/", str(tmp_path)))
    ]
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


TOYBOX = """#!/bin/sh
[ "$1" = -c ] && shift
exec /bin/sh -c "$1"
"""
"""Takes what follows `-c` for the script, whatever it is."""


@pytest.mark.parametrize("script_text", ["echo a", "  -x; echo a", "# -\necho a"])
def test_shell_that_takes_two_dashes_for_a_script_runs_what_begins_with_none(
    tmp_path: Path, script_text: str
) -> None:
    script(tmp_path / "sh", TOYBOX)
    argv = shells.argv(str(tmp_path / "sh"), script_text.encode())
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "a\n"


@pytest.mark.parametrize("script_text", ["-x() { echo a; }; -x", "+x() { echo a; }; +x"])
def test_script_that_begins_as_an_option_is_none(script_text: str) -> None:
    argv = shells.argv("/bin/bash", script_text.encode())
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "a\n"


def test_names_that_cannot_be_started_use_up_no_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / str(number) for number in range(shells.PROBES_MAX + 5)]
    for folder in folders:
        folder.mkdir()
        script(folder / "bash", "#!/bin/sh\n", 0o644)
    script(folders[-1] / "bash", "#!/bin/sh\n", 0o755)
    started: list[str] = []
    works = {f"{folders[-1]}/bash"}

    def fault_of(shell: str, *_: object) -> str:
        started.append(shell)
        return "" if shell in works else "broken"

    monkeypatch.setattr(shells, "_fault_of", fault_of)
    path = ":".join(map(str, folders))
    assert shells.find(machine(path)) == f"{folders[-1]}/bash"
    works.clear()
    started.clear()
    for folder in folders:
        (folder / "bash").chmod(0o755)
    assert shells.find(machine(path)) is None
    assert len(started) == shells.PROBES_MAX


def test_text_names_what_was_tried_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "_faults", [])
    assert "has no bash and no sh" in shells.missing_text()
    monkeypatch.setattr(shells, "_faults", [f"/bin/sh{number}: x" for number in range(1000)])
    assert "/bin/sh0: x; /bin/sh1: x" in shells.missing_text()
    assert len(shells.missing_text()) < 700


@pytest.mark.parametrize(("image", "wanted"), [("", environment.PATH_DEFAULT), ("/x", "/x")])
def test_path_of_commands_is_the_images_unless_it_is_empty(image: str, wanted: str) -> None:
    assert environment.command_environment(machine(image))["PATH"] == wanted
