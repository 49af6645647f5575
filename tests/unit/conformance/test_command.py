"""The command line: what it says and which code it ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "sandbox_adapter.conformance"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=50
    )


def test_list_shows_every_rule_and_asks_nobody() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert "read.final-newline" in done.stdout
    assert len(done.stdout.splitlines()) > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--target is missing"),
        (["--target", "x", "--jobs", "0"], "--jobs must be from 1 to 16"),
        (["--target", "x", "--select", "no.such-rule"], "no rule has such an id"),
        (["--target", "x", "--tls-cert", "c"], "--tls-cert and --tls-key go together"),
        (["--target", "x", "--token-file", "/none"], "cannot read `/none`"),
        (["--target", "x", "--known-differences", "/none"], "cannot read `/none`"),
        (["--target", "x", "--junit", "/none/x.xml"], "cannot write `/none/x.xml`"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_adapter_that_does_not_answer_is_code_3(tmp_path: Path) -> None:
    done = run("--target", f"unix:{tmp_path}/none.sock", "--connect-timeout", "1")
    assert done.returncode == 3
    assert "does not answer" in done.stderr
