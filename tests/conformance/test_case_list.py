"""Every case of the tools' list is judged: by a rule of the kit, or by a test that names it.

`tool_cases.txt` is the list. A test names a case with the mark
`@pytest.mark.tool_case("B39")`; that is for what cannot be seen from outside.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sandbox_adapter.conformance.catalogue import all_rules

LIST = Path(__file__).with_name("tool_cases.txt").read_text().split()
TESTS = Path(__file__).parents[1]
CASE = re.compile(r"[RWEBGLD]\d+")


def marked() -> Iterator[tuple[str, str]]:
    """Every case that a test names, and that test."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(".tool_case"):
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant), ast.unparse(mark)
                        yield str(argument.value), node.name


def ruled() -> Iterator[tuple[str, str]]:
    for rule in all_rules():
        for case in rule.cases:
            if CASE.fullmatch(case):
                yield case, rule.id


def test_list_holds_every_group_once() -> None:
    assert len(LIST) == len(set(LIST)) == 180
    assert {case[0] for case in LIST} == set("RWEBGLD")


def test_every_case_is_named_by_a_rule_or_a_test() -> None:
    named = {case for case, _ in (*ruled(), *marked())}
    assert [case for case in LIST if case not in named] == []


def test_nothing_names_a_case_that_is_not_listed() -> None:
    known = set(LIST)
    assert [found for found in (*ruled(), *marked()) if found[0] not in known] == []


def test_ids_of_rules_are_stable_in_form_and_unique() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids))
    for rule_id in ids:
        assert re.fullmatch(r"[a-z]+(\.[a-z0-9][a-z0-9-]*)+", rule_id), rule_id
