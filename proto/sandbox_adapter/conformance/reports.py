"""A run as files for machines: JSON, and JUnit XML for what shows test results."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from sandbox_adapter.conformance.outcome import Outcome
from sandbox_adapter.conformance.rule import Level
from sandbox_adapter.conformance.runner import Verdict
from sandbox_adapter.v1 import adapter_pb2

# XML 1.0 cannot hold these, escaped or not.
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Run:
    """A finished run, as reports show it."""

    target: str
    profile: str
    level: Level
    info: adapter_pb2.GetInfoResponse
    started_at: datetime
    seconds: float
    verdicts: Sequence[Verdict]

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    @property
    def passed(self) -> bool:
        return all(verdict.outcome.ends_well for verdict in self.verdicts)


def write_json(run: Run, path: Path) -> None:
    counts = run.counts
    content = {
        "adapter": {"name": run.info.name, "version": run.info.version},
        "backend": run.info.backend,
        "target": run.target,
        "profile": run.profile,
        "level": run.level,
        "started_at": run.started_at.isoformat(),
        "seconds": round(run.seconds, 3),
        "passed": run.passed,
        "counts": {outcome.value: counts[outcome] for outcome in Outcome},
        "rules": [
            {
                "id": verdict.rule.id,
                "title": verdict.rule.title,
                "level": verdict.rule.level,
                "cases": list(verdict.rule.cases),
                "outcome": verdict.outcome.value,
                "detail": verdict.detail,
                "seconds": round(verdict.seconds, 4),
            }
            for verdict in run.verdicts
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_junit(run: Run, path: Path) -> None:
    counts = run.counts
    skipped = counts[Outcome.NOT_CLAIMED] + counts[Outcome.UNCHECKABLE] + counts[Outcome.KNOWN]
    suite = ElementTree.Element(
        "testsuite",
        name=_xml_text(f"sandbox_adapter.v1 conformance: {run.info.name} {run.profile}".rstrip()),
        tests=str(len(run.verdicts)),
        failures=str(counts[Outcome.FAIL] + counts[Outcome.FIXED]),
        skipped=str(skipped),
        errors="0",
        time=f"{run.seconds:.3f}",
        timestamp=run.started_at.isoformat(timespec="seconds"),
    )
    for verdict in run.verdicts:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{verdict.rule.area}",
            name=verdict.rule.id,
            time=f"{verdict.seconds:.4f}",
        )
        detail = _xml_text(verdict.detail)
        if not verdict.outcome.ends_well:
            failure = ElementTree.SubElement(case, "failure", message=detail)
            failure.text = f"{verdict.rule.title}\n{detail}"
        elif verdict.outcome is not Outcome.PASS:
            message = f"{verdict.outcome.value}: {detail}"
            ElementTree.SubElement(case, "skipped", message=message)
    ElementTree.indent(suite)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _xml_text(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
