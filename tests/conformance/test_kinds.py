"""Every kind of sandbox that this daemon makes keeps the contract, by the kit's own judgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.targets import FIRST_KINDS, Kind, assert_conforms, param

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]


@pytest.mark.parametrize("kind", [param(kind) for kind in FIRST_KINDS])
def test_kit_passes_on(kind: Kind, tmp_path: Path) -> None:
    assert_conforms(kind, tmp_path)
