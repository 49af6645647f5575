"""What judging a rule comes to: every way in which one can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sandbox_adapter import errors
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Outcome, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import FILES, SIX_TOOLS, Check, Rule, rule
from sandbox_adapter.conformance.runner import Runner, Verdict, selected
from sandbox_adapter.conformance.target import Target, TrackingClient
from sandbox_adapter.v1 import adapter_pb2, session_pb2


class StillTarget(Target):
    """A target that makes sessions without asking anybody, and counts them."""

    def __init__(self, client: TrackingClient, *capabilities: adapter_pb2.Capability) -> None:
        info = adapter_pb2.GetInfoResponse(capabilities=capabilities)
        super().__init__(client, info, "")
        self.looked_after = 0
        self.retired = 0
        self.own_sessions = 0

    @asynccontextmanager
    async def shared_session(self) -> AsyncIterator[session_pb2.Session]:
        yield session_pb2.Session(session_id="shared")

    def retire(self, session: session_pb2.Session) -> None:
        self.retired += 1

    async def look_after(self, session: session_pb2.Session) -> None:
        self.looked_after += 1

    @asynccontextmanager
    async def session(self, **arguments: Any) -> AsyncIterator[session_pb2.Session]:
        self.own_sessions += 1
        yield session_pb2.Session(session_id=f"own-{self.own_sessions}")


async def judge(
    *rules: Rule, differences: dict[str, str] | None = None, jobs: int = 4
) -> tuple[list[Verdict], StillTarget]:
    async with TrackingClient("unix:/nowhere") as client:
        target = StillTarget(client, SIX_TOOLS)
        runner = Runner(target, differences or {}, jobs)
        return [verdict async for verdict in runner.run(rules)], target


def made(check: Check, rule_id: str = "a.rule", **arguments: Any) -> Rule:
    return rule(rule_id, **arguments)(check)


async def holds(place: Place) -> None:
    """It holds."""


async def breaks(place: Place) -> None:
    """It breaks."""
    expect.equal(1, 2, "the number")


async def test_rule_that_returns_passes() -> None:
    (verdict,), _ = await judge(made(holds))
    assert (verdict.outcome, verdict.detail) == (Outcome.PASS, "")


async def test_rule_that_is_broken_fails_with_both_sides() -> None:
    (verdict,), target = await judge(made(breaks))
    assert (verdict.outcome, verdict.detail) == (Outcome.FAIL, "the number: 1, expected 2")
    assert target.looked_after == 1


async def test_capability_that_is_not_claimed_is_said_and_nothing_runs() -> None:
    (verdict,), target = await judge(made(breaks, needs=(FILES,), alone=True))
    assert verdict.outcome is Outcome.NOT_CLAIMED
    assert verdict.detail == "the adapter does not claim FILES"
    assert target.own_sessions == 0


async def test_what_cannot_be_judged_is_never_passed() -> None:
    async def needs_a_shell(place: Place) -> None:
        """It needs a shell."""
        raise Uncheckable("the sandbox has no shell")

    (verdict,), _ = await judge(made(needs_a_shell), differences={"a.rule": "why"})
    assert (verdict.outcome, verdict.detail) == (Outcome.UNCHECKABLE, "the sandbox has no shell")


async def test_failed_request_is_a_failed_rule() -> None:
    async def asks(place: Place) -> None:
        """It asks."""
        raise errors.SessionGone(errors.Failure("NOT_FOUND", "gone", "SESSION_UNKNOWN"))

    (verdict,), _ = await judge(made(asks))
    assert verdict.outcome is Outcome.FAIL
    assert "NOT_FOUND SESSION_UNKNOWN" in verdict.detail


async def test_answer_that_no_rule_foresaw_is_a_failed_rule() -> None:
    async def reads_numbers(place: Place) -> None:
        """It reads numbers."""
        int("no number")

    (verdict,), _ = await judge(made(reads_numbers))
    assert verdict.outcome is Outcome.FAIL
    assert "ValueError" in verdict.detail


async def test_adapter_that_hangs_fails_the_rule() -> None:
    async def waits(place: Place) -> None:
        """It waits."""
        await asyncio.Event().wait()

    (verdict,), target = await judge(made(waits, timeout_s=0.05))
    assert verdict.outcome is Outcome.FAIL
    assert "not judged within" in verdict.detail
    # Its call may still run there.
    assert target.retired == 1


async def test_time_that_a_session_takes_is_not_the_rules() -> None:
    class Slow(StillTarget):
        @asynccontextmanager
        async def session(self, **arguments: Any) -> AsyncIterator[session_pb2.Session]:
            await asyncio.sleep(0.2)
            yield session_pb2.Session(session_id="slow")
            await asyncio.sleep(0.2)

    async with TrackingClient("unix:/nowhere") as client:
        runner = Runner(Slow(client, SIX_TOOLS), {})
        (verdict,) = [each async for each in runner.run([made(holds, alone=True, timeout_s=0.1)])]
    assert verdict.outcome is Outcome.PASS


async def test_what_an_adapter_says_reaches_a_report_on_one_line_without_controls() -> None:
    async def asks(place: Place) -> None:
        """It asks."""
        with expect.fails("NOT_FOUND", "CALL_UNKNOWN"):
            raise errors.SessionGone(errors.Failure("NOT_FOUND", "a\x1b[31m\nb", "SESSION\x07"))

    async def shows(place: Place) -> None:
        """It shows."""
        expect.holds(False, "raw \x1b]0;title\x07\n\u202e end")

    verdicts, _ = await judge(made(asks, "a.one"), made(shows, "a.two"))
    for verdict in verdicts:
        assert verdict.outcome is Outcome.FAIL
        assert verdict.detail.isprintable(), verdict.detail


async def test_listed_difference_may_fail_and_may_not_pass() -> None:
    listed = {"a.one": "it cannot", "a.two": "it cannot either"}
    verdicts, _ = await judge(made(breaks, "a.one"), made(holds, "a.two"), differences=listed)
    assert [verdict.outcome for verdict in verdicts] == [Outcome.KNOWN, Outcome.FIXED]
    assert verdicts[0].detail.startswith("it cannot (")
    assert [verdict.outcome.ends_well for verdict in verdicts] == [True, False]


async def test_rule_that_harms_needs_isolation_and_its_own_session() -> None:
    harmful = made(holds, harmful=True)
    assert harmful.alone
    assert adapter_pb2.CAPABILITY_ISOLATED in harmful.needs
    (verdict,), _ = await judge(harmful)
    assert verdict.outcome is Outcome.NOT_CLAIMED


async def test_rules_have_folders_of_their_own_and_verdicts_their_order() -> None:
    folders: list[str] = []

    def slow(number: int) -> Rule:
        async def check(place: Place) -> None:
            """It takes its time."""
            folders.append(place.folder)
            # The first rule ends last.
            for _ in range(10 - number):
                await asyncio.sleep(0)

        return made(check, f"a.rule-{number}")

    rules = [slow(number) for number in range(8)]
    verdicts, _ = await judge(*rules)
    assert [verdict.rule.id for verdict in verdicts] == [each.id for each in rules]
    assert len(set(folders)) == 8


async def test_no_more_rules_run_at_a_time_than_asked_for() -> None:
    running = most = 0

    async def check(place: Place) -> None:
        """It counts."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await judge(*(made(check, f"a.rule-{number}") for number in range(9)), jobs=2)
    assert most == 2


async def test_reader_that_stops_early_ends_what_runs() -> None:
    cancelled = asyncio.Event()

    async def waits(place: Place) -> None:
        """It waits."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with TrackingClient("unix:/nowhere") as client:
        runner = Runner(StillTarget(client, SIX_TOOLS), {})
        verdicts = runner.run([made(holds, "a.one"), made(waits, "a.two")])
        await anext(verdicts)
        await asyncio.sleep(0)
        await verdicts.aclose()
    assert cancelled.is_set()


def test_selection_is_by_level_and_id() -> None:
    rules = [
        made(holds, "read.a"),
        made(holds, "read.b", level="full"),
        made(holds, "write.a"),
    ]
    assert [found.id for found in selected(rules, "core", [])] == ["read.a", "write.a"]
    assert [found.id for found in selected(rules, "full", ["read.*"])] == ["read.a", "read.b"]
    assert selected(rules, "core", ["read.b"]) == []
