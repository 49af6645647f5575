"""What a script may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.models.script import Script, ScriptMismatch, load_script, play


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"when": {"results": ["("]}}, "no regular expression"),
        ({"when": {"task": "("}}, "no regular expression"),
        ({"capture": {"line": "a+"}}, "no group to capture"),
        ({"say": "x"}, "Extra inputs"),
    ],
)
def test_script_with_a_mistake_is_one_clear_line(
    tmp_path: Path, turn: dict[str, Any], said: str
) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [turn]}))
    with pytest.raises(UsageError, match=said) as caught:
        load_script(path)
    assert "\n" not in str(caught.value)


def test_script_capture_that_is_no_number_is_a_mismatch() -> None:
    arguments = {"offset": {"capture": "line", "add": 1}}
    turn = {"capture": {"line": "line (.+)"}, "calls": [{"name": "read", "arguments": arguments}]}
    script = Script.model_validate({"turns": [turn]})

    def request(result: str) -> dict[str, Any]:
        return {"messages": [{"role": "tool", "content": result}]}

    assert play(script, request("line 41"))[1].calls[0].arguments == {"offset": 42}
    with pytest.raises(ScriptMismatch, match="`line` holds no number"):
        play(script, request("line forty"))
