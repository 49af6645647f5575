"""Answers that wait to be recorded: what is kept of them, and how much."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.guest import kept
from sandboxd.guest.kept import Kept
from sandboxd.guest.ops import Answer, OpError


def is_dropped(answer: Answer | OpError | None) -> bool:
    return isinstance(answer, OpError) and answer.reason == "RESULT_DROPPED"


LARGE: dict[str, dict[str, Any]] = {
    "text": {"found": "x" * 60_000},
    "lists": {"rows": [[str(number), number] for number in range(600)]},
}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("is_error", [False, True])
def test_facts_count_against_the_bound(
    kind: str, is_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 600_000)
    answers = Kept()
    for number in range(40):
        facts = dict(LARGE[kind])
        answers.keep(f"c{number}", OpError("NO", "no", **facts) if is_error else (facts, b""))
    dropped = [call_id for call_id in answers.ids() if is_dropped(answers.find(call_id))]
    assert len(answers.ids()) == 40
    assert 25 <= len(dropped) <= 39
    assert dropped == answers.ids()[: len(dropped)]
    assert not is_dropped(answers.find("c39"))


def test_what_is_recorded_gives_back_all_that_it_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 200_000)
    answers = Kept()
    for number in range(200):
        answers.keep(f"c{number}", ({"text": "x" * 60_000}, b"y" * 60_000))
        answers.forget([f"c{number}", "never"])
    answers.keep("last", ({"text": "x" * 60_000}, b"y" * 60_000))
    found = answers.find("last")
    assert isinstance(found, tuple)
    assert found[1] == b"y" * 60_000


def test_beyond_the_greatest_number_the_oldest_go_with_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "KEPT_MAX", 3)
    answers = Kept()
    for number in range(5):
        answers.keep(f"c{number}", ({}, b""))
    assert answers.ids() == ["c2", "c3", "c4"]
    assert answers.find("c1") is None
