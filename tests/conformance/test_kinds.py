"""Every kind of sandbox that this daemon makes keeps the contract, by the kit's own judgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.targets import KINDS, Kind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, id=kind.name, marks=[pytest.mark.docker] if kind.backend == "docker" else []
        )
        for kind in KINDS
    ],
)
def test_kit_passes_on(kind: Kind, tmp_path: Path) -> None:
    run = kind.judge(tmp_path, kind.config(), kind.areas)
    assert run.code == 0, run.said
    assert run.unforeseen(kind.unjudged) == [], run.said
