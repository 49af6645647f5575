"""What a kind of sandbox may leave unjudged: by reason, and only so often."""

from __future__ import annotations

from tests.conformance.kit import KitRun, Unjudged

NO_SHELL = Unjudged("the sandbox has no shell", 2)


def run_with(*details: tuple[str, str]) -> KitRun:
    rules = [{"id": "a.b", "outcome": outcome, "detail": detail} for outcome, detail in details]
    return KitRun(0, "", {"rules": rules})


def test_reason_that_is_allowed_is_foreseen() -> None:
    run = run_with(("pass", ""), *[("uncheckable", "the sandbox has no shell")] * 2)
    assert run.unforeseen([NO_SHELL]) == []


def test_reason_that_swallows_more_than_it_may_is_found() -> None:
    run = run_with(*[("uncheckable", "the sandbox has no shell")] * 3)
    assert run.unforeseen([NO_SHELL]) == ["3 rules, at most 2: the sandbox has no shell"]


def test_reason_that_nobody_named_is_found() -> None:
    run = run_with(
        ("uncheckable", "the sandbox has no shell at all"),
        ("not claimed", "the adapter does not claim FILES"),
    )
    assert run.unforeseen([NO_SHELL]) == [
        "1 rules: the sandbox has no shell at all",
        "1 rules: the adapter does not claim FILES",
    ]
