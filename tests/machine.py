"""What some tests need of the machine besides an engine.

Without it they are skipped on a developer's machine, with a reason that is easy to see, and
fail with CI=true: there everything is promised, and a test that nobody runs proves nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = pytest.mark.machine(os.geteuid() == 0, "root")
LOOPS: Final = pytest.mark.machine(
    os.geteuid() == 0 and Path("/dev/loop-control").exists(), "root and loop devices"
)
OWN_ENGINE: Final = pytest.mark.machine(
    os.geteuid() == 0 and shutil.which("dockerd") is not None,
    "root and `dockerd`, for an engine of the tests' own",
)
