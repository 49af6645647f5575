"""Judges rules against a target: several at a time, answers in the order of the rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.conformance.expect import printable, shown
from sandbox_adapter.conformance.outcome import Broken, Outcome, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import Level, Rule
from sandbox_adapter.conformance.target import Target
from sandbox_adapter.v1 import adapter_pb2, session_pb2

JOBS_DEFAULT: Final = 4


@dataclass(frozen=True)
class Verdict:
    """What judging one rule came to."""

    rule: Rule
    outcome: Outcome
    detail: str = ""
    """What was expected and what came, the capability, or the reason. Empty for a pass."""
    seconds: float = 0.0


@dataclass(frozen=True)
class _Judged:
    """What came of a rule's code, before the list of differences is asked."""

    outcome: Outcome
    detail: str = ""
    left_a_call: bool = False
    """Whether it was cut off, so that a call of its may still run in the session."""


class Runner:
    """Runs rules. `differences` holds reasons by the ids of rules that may fail."""

    def __init__(
        self, target: Target, differences: Mapping[str, str], jobs: int = JOBS_DEFAULT
    ) -> None:
        self._target = target
        self._differences = differences
        self._slots = asyncio.Semaphore(jobs)
        self._numbers = count(1)
        self.running: set[str] = set()
        """Ids of the rules that are being judged, for progress."""

    async def run(self, rules: Sequence[Rule]) -> AsyncGenerator[Verdict, None]:
        """Verdicts in the order of `rules`."""
        tasks = [asyncio.ensure_future(self._judge(rule)) for rule in rules]
        try:
            for task in tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, rule: Rule) -> Verdict:
        missing = [need for need in sorted(rule.needs) if not self._target.claims(need)]
        if missing:
            names = ", ".join(_capability(need) for need in missing)
            return Verdict(rule, Outcome.NOT_CLAIMED, f"the adapter does not claim {names}")
        async with self._slots:
            begun = time.monotonic()
            self.running.add(rule.id)
            try:
                judged = await self._try(rule)
            finally:
                self.running.discard(rule.id)
            seconds = time.monotonic() - begun
        outcome, detail = self._listed(rule, judged.outcome, judged.detail)
        return Verdict(rule, outcome, printable(detail), seconds)

    def _listed(self, rule: Rule, outcome: Outcome, detail: str) -> tuple[Outcome, str]:
        reason = self._differences.get(rule.id)
        if reason is None:
            return outcome, detail
        if outcome is Outcome.FAIL:
            return Outcome.KNOWN, f"{reason} ({detail})"
        if outcome is Outcome.PASS:
            return Outcome.FIXED, f"listed as a difference ({reason}), and it passes: unlist it"
        return outcome, detail

    async def _try(self, rule: Rule) -> _Judged:
        # Making and ending a session have deadlines of their own: a machine that takes
        # long to start is no rule that takes long to judge.
        try:
            if rule.alone:
                async with self._target.session() as session:
                    return await self._in(rule, session)
            async with self._target.shared_session() as session:
                judged = await self._in(rule, session)
                if judged.left_a_call:
                    self._target.retire(session)
                elif judged.outcome is Outcome.FAIL:
                    await self._target.look_after(session)
                return judged
        except errors.AdapterError as error:
            return _Judged(Outcome.FAIL, f"no session for the rule: {_failure(error)}")

    async def _in(self, rule: Rule, session: session_pb2.Session) -> _Judged:
        folder = f"{session.effective.working_directory}/rule-{next(self._numbers):04}"
        clock = asyncio.timeout(rule.timeout_s)
        try:
            async with clock:
                await rule.check(Place(self._target, session, folder))
        except Broken as broken:
            return _Judged(Outcome.FAIL, str(broken))
        except Uncheckable as uncheckable:
            return _Judged(Outcome.UNCHECKABLE, str(uncheckable))
        except TimeoutError:
            if not clock.expired():
                return _Judged(Outcome.FAIL, "something that the rule waited for did not come")
            detail = f"not judged within {rule.timeout_s:.0f} s"
            return _Judged(Outcome.FAIL, detail, left_a_call=True)
        except errors.AdapterError as error:
            return _Judged(Outcome.FAIL, f"a request failed: {_failure(error)}")
        except Exception as error:  # noqa: BLE001 - an answer that no rule foresaw is the adapter's
            return _Judged(Outcome.FAIL, f"the answer broke the rule's code: {shown(error)}")
        return _Judged(Outcome.PASS)


def selected(rules: Sequence[Rule], level: Level, patterns: Sequence[str]) -> list[Rule]:
    """The rules of a level whose id fits one of the patterns (`read.*`), or all of it."""
    return [
        rule
        for rule in rules
        if (level == "full" or rule.level == "core")
        and (not patterns or any(fnmatchcase(rule.id, pattern) for pattern in patterns))
    ]


def _capability(value: adapter_pb2.Capability) -> str:
    return adapter_pb2.Capability.Name(value).removeprefix("CAPABILITY_")


def _failure(error: errors.AdapterError) -> str:
    return f"{error.status} {error.reason or '(no reason)'}: {shown(str(error))}"
