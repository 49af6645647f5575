"""`make demo`, from its first line to its last."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "demo" / "run.py"


def demo(**env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MODEL")}
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


NO_ENGINE = "unix:///nonexistent/docker.sock"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="docker", marks=pytest.mark.docker),
        pytest.param({"DOCKER_HOST": NO_ENGINE}, id="no engine"),
    ],
)
def test_demo_ends_with_the_repaired_tests_passing(env: dict[str, str]) -> None:
    done = demo(**env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^tests +180 passed .*fresh sandbox", done.stdout, re.MULTILINE)
    assert re.search(r"^end +nothing left behind", done.stdout, re.MULTILINE)
    assert "+                if prev[mid] is no_pad:" in done.stdout
    set_up = re.search(r"^set-up .* in ([0-9.]+) s", done.stdout, re.MULTILINE)
    assert set_up is not None
    assert float(set_up.group(1)) < 15
    assert ("isolated from nothing" in done.stdout) == bool(env)


def test_demo_with_a_live_model_stops_without_an_engine() -> None:
    done = demo(MODEL="any", MODEL_BASE_URL="http://127.0.0.1:9/v1", DOCKER_HOST=NO_ENGINE)
    assert done.returncode == 3
    assert done.stdout.count("\n") == 1
    assert "no container engine" in done.stdout
