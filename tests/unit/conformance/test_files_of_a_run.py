"""The list of differences, vectors and reports: what people write and what machines read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sandbox_adapter.conformance import differences, reports, vectors
from sandbox_adapter.conformance.outcome import Outcome
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.runner import Verdict
from sandbox_adapter.v1 import adapter_pb2

KNOWN = ("read.a", "read.b")


@rule("read.a", cases=["R1"])
async def a_rule(place: Place) -> None:
    """A rule."""


def test_differences_are_reasons_by_id(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('[[difference]]\nrule = "read.a"\nreason = " it cannot "\n')
    assert differences.load(path, KNOWN) == {"read.a": "it cannot"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[difference]\n", "is not TOML"),
        ("[[differences]]\nrule = 'read.a'\n", "unknown key `differences`"),
        ("difference = 1\n", "must be a list"),
        ("[[difference]]\nrule = 'read.a'\n", "give `rule` and `reason`"),
        ("[[difference]]\nrule = 'read.a'\nreason = ' '\n", "the reason not empty"),
        ("[[difference]]\nrule = 1\nreason = 'x'\n", "must be text"),
        ("[[difference]]\nrule = 'read.c'\nreason = 'x'\n", "no rule has the id `read.c`"),
        ("[[difference]]\nrule = 'read.a'\nreason = 'x'\n" * 2, "listed twice"),
    ],
)
def test_bad_list_of_differences_is_refused_in_one_line(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "list.toml"
    path.write_text(content)
    with pytest.raises(differences.BadList) as refused:
        differences.load(path, KNOWN)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_list_of_differences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(differences.BadList, match="cannot read"):
        differences.load(tmp_path / "none.toml", KNOWN)


@pytest.mark.parametrize(
    ("content", "data"),
    [
        ("é\n", "é\n".encode()),
        (["a", {"text": "b", "times": 3}, "c"], b"abbbc"),
        ([{"base64": "/wA="}], b"\xff\0"),
        ([{"lines": [9, 11, "line #\n"]}], b"line 9\nline 10\nline 11\n"),
        ([], b""),
    ],
)
def test_content_of_a_vector(content: str | list[object], data: bytes) -> None:
    assert vectors.content_of(content) == data


def test_vector_with_an_unknown_key_is_refused() -> None:
    vector = {"id": "read.x", "title": "x", "calls": [{"tool": "read", "expect": {"texts": ""}}]}
    with pytest.raises(vectors.BadVector, match="texts"):
        vectors.rule_of(vector, "read.json")
    with pytest.raises(vectors.BadVector, match="extra"):
        vectors.rule_of({**vector, "calls": [], "extra": 1}, "read.json")


def test_vector_with_unknown_details_is_refused() -> None:
    call = {"tool": "read", "input": {}, "expect": {"details": {"next_ofset": None}}}
    with pytest.raises(vectors.BadVector, match="next_ofset"):
        vectors.rule_of({"id": "read.x", "title": "x", "calls": [call]}, "read.json")


def a_run(*outcomes: Outcome) -> reports.Run:
    return reports.Run(
        target="unix:/x",
        profile="default",
        level="full",
        info=adapter_pb2.GetInfoResponse(name="thing", version="1"),
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        seconds=1.5,
        verdicts=[Verdict(a_rule, outcome, "seen <\0&>", 0.25) for outcome in outcomes],
    )


def test_run_is_passed_where_nothing_ends_badly() -> None:
    good = (Outcome.PASS, Outcome.NOT_CLAIMED, Outcome.UNCHECKABLE, Outcome.KNOWN)
    assert a_run(*good).passed
    assert not a_run(*good, Outcome.FAIL).passed
    assert not a_run(*good, Outcome.FIXED).passed


def test_junit_report_counts_and_escapes(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    reports.write_junit(a_run(*Outcome), path)
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "2", "3")
    failures = suite.findall("testcase/failure")
    assert [failure.get("message") for failure in failures] == ["seen <\ufffd&>"] * 2
    skipped = [found.get("message") for found in suite.findall("testcase/skipped")]
    assert skipped[0] == "not claimed: seen <\ufffd&>"
    assert suite.find("testcase").get("name") == "read.a"  # type: ignore[union-attr]


def test_junit_report_can_be_read_whatever_an_adapter_calls_itself(tmp_path: Path) -> None:
    path, run = tmp_path / "report.xml", a_run(Outcome.PASS)
    run.info.name = "a\0b\x1b<"
    reports.write_junit(run, path)
    name = ElementTree.parse(path).getroot().get("name")
    assert name == "sandbox_adapter.v1 conformance: a\ufffdb\ufffd< default"


def test_json_report_holds_every_rule(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    reports.write_json(a_run(Outcome.PASS, Outcome.FAIL), path)
    content = json.loads(path.read_text())
    assert content["passed"] is False
    assert content["counts"]["fail"] == 1
    assert content["rules"][0] == {
        "id": "read.a",
        "title": "A rule.",
        "level": "core",
        "cases": ["R1"],
        "outcome": "pass",
        "detail": "seen <\0&>",
        "seconds": 0.25,
    }
