"""The other half of `test_kinds.py`: a file of its own runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.targets import OTHER_KINDS, Kind, assert_conforms, param

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]


@pytest.mark.parametrize("kind", [param(kind) for kind in OTHER_KINDS])
def test_kit_passes_on(kind: Kind, tmp_path: Path) -> None:
    assert_conforms(kind, tmp_path)
