"""The command lines where a dependency is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import runpy, sys
sys.modules[sys.argv[1]] = None  # importing it fails, as where it is not installed
sys.argv = [sys.argv[2], "--help"]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("program", "extra", "library"),
    [
        ("orchestrator", "orchestrator", "pydantic"),
        ("orchestrator", "orchestrator", "httpx"),
        ("orchestrator", "orchestrator", "rich"),
        ("sandboxd", "daemon", "pydantic"),
        ("sandboxd", "daemon", "grpc_health"),
        ("sandboxd", "daemon", "prometheus_client"),
    ],
)
def test_program_without_its_extra_names_it_in_one_line(
    program: str, extra: str, library: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, library, program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{program}: error: `{library}")
    assert line.endswith(f"install sandboxd[{extra}]")
