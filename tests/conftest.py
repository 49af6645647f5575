"""Options and rules for the whole suite.

Tests marked `docker` need a container engine. Without one they are skipped on a developer's
machine and fail where the engine is promised: with `--require-engine` or with CI=true. Those
that need something else of the machine say so with the marks of `machine.py`.
"""

import functools
import os
import shutil
import subprocess

import pytest
from hypothesis import settings

# How long an example takes says something about the machine, not about the code. CI judges a
# change, so it tries the same examples each time; a person's runs look for new ones.
settings.register_profile("project", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("project")

ENGINE_ANSWER_TIMEOUT_S = 10


@functools.cache
def engine_fault() -> str:
    """Why no container engine can be used, or an empty text."""
    if shutil.which("docker") is None:
        return "there is no `docker` command"
    try:
        asked = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=ENGINE_ANSWER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the engine did not answer in {ENGINE_ANSWER_TIMEOUT_S} s"
    return "" if asked.returncode == 0 else asked.stderr.strip()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        help="fail the tests marked `docker`, instead of skipping them, where no engine answers",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "machine(has, what): needs something of the machine, which CI promises; see machine.py",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("machine"):
        has, what = mark.args
        if not has and os.environ.get("CI") == "true":
            pytest.fail(f"needs {what}", pytrace=False)
        if not has:
            pytest.skip(f"NOT TESTED HERE: needs {what}")
    if item.get_closest_marker("docker") is None or not (fault := engine_fault()):
        return
    if item.config.getoption("--require-engine") or os.environ.get("CI") == "true":
        pytest.fail(f"needs a container engine: {fault}", pytrace=False)
    pytest.skip(f"no container engine: {fault}")
