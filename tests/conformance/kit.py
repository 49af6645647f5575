"""Runs the kit as an adapter's author would: a program, an address, a profile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

RUN_S: Final = 900.0
JOBS: Final = 8
"""Most rules of the kit wait for something: so many at a time keep two processors busy."""


@dataclass(frozen=True)
class Unjudged:
    """Why some rules need not be judged: `reason` fits the whole detail that the kit gives."""

    reason: str
    at_most: int
    """Most rules that it may be said of: a reason must not swallow a whole area."""


@dataclass(frozen=True)
class KitRun:
    """What a run of the kit came to."""

    code: int
    output: str
    report: dict[str, Any]

    @property
    def failed(self) -> set[str]:
        """Ids of the rules that ended badly."""
        bad = ("fail", "no longer different")
        return {rule["id"] for rule in self.report["rules"] if rule["outcome"] in bad}

    @property
    def counts(self) -> Counter[str]:
        return Counter(rule["outcome"] for rule in self.report["rules"])

    def details(self, outcome: str) -> Counter[str]:
        """How often each detail was given for an outcome."""
        return Counter(
            rule["detail"] for rule in self.report["rules"] if rule["outcome"] == outcome
        )

    def unforeseen(self, allowed: Sequence[Unjudged]) -> list[str]:
        """What was not judged for a reason that is not allowed, or for one too often."""
        found: list[str] = []
        counts: Counter[Unjudged] = Counter()
        for detail, count in (self.details("uncheckable") + self.details("not claimed")).items():
            why = next((each for each in allowed if re.fullmatch(each.reason, detail)), None)
            if why is None:
                found.append(f"{count} rules: {detail}")
            else:
                counts[why] += count
        over = ((why, count) for why, count in counts.items() if count > why.at_most)
        return found + [
            f"{count} rules, at most {why.at_most}: {why.reason}" for why, count in over
        ]

    @property
    def said(self) -> str:
        """The part of the output that a failing test shows."""
        lines = self.output.splitlines()
        return "\n".join(line for line in lines if not line.startswith("pass "))


def run_kit(address: str, folder: Path, *arguments: str) -> KitRun:
    """Runs it with reports into `folder`. Extra arguments as on its command line."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "sandbox_adapter.conformance", "--target", address]
    command += ["--jobs", str(JOBS), "--json", str(report), "--junit", str(folder / "report.xml")]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    if done.returncode not in (0, 1):
        raise AssertionError(f"the kit ended with {done.returncode}: {done.stderr}")
    return KitRun(done.returncode, done.stdout + done.stderr, json.loads(report.read_text()))
