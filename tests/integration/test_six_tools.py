"""The six tools over gRPC, on both backends: limits, texts, paging, edits, commands."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.integration.conftest import OpenSession

READ_MARK = re.compile(r"\[Showing lines (\d+)-(\d+) of (\d+)\. Use offset=(\d+) to continue\.\]$")


async def test_list_tools_offers_the_six_with_their_effects(session: OpenSession) -> None:
    tools = {tool.name: tool for tool in await session.client.list_tools()}
    assert list(tools) == ["read", "write", "edit", "bash", "grep", "glob"]
    reads = {name for name, tool in tools.items() if tool.effect == tool_pb2.EFFECT_CLASS_READ}
    assert reads == {"read", "grep", "glob"}
    assert tools["bash"].effect == tool_pb2.EFFECT_CLASS_OPAQUE
    assert tools["bash"].timeout_max.ToSeconds() == 3600


async def test_read_pages_ten_thousand_lines_without_gap_or_overlap(session: OpenSession) -> None:
    lines = [f"line {number} {'x' * (number % 60)}" for number in range(1, 10_001)]
    await session.tool("write", path="big.txt", content="\n".join(lines) + "\n")
    seen: list[str] = []
    offset = 1
    while True:
        result = await session.tool("read", path="big.txt", offset=offset)
        body, _, last = result.text.rpartition("\n")
        mark = READ_MARK.match(last)
        page = (body if mark else result.text.removesuffix("\n")).split("\n")
        assert len(page) <= 2000
        assert len("\n".join(page).encode()) <= 51_200
        seen += page
        if mark is None:
            assert not result.truncated
            break
        assert result.truncated
        assert (int(mark[1]), int(mark[2]), int(mark[3])) == (offset, len(seen), 10_000)
        offset = int(mark[4])
        assert offset == len(seen) + 1
    assert seen == lines


async def test_read_shows_exactly_two_thousand_lines(session: OpenSession) -> None:
    await session.tool("write", path="n.txt", content="\n" * 2000)
    whole = await session.tool("read", path="n.txt")
    assert not whole.truncated
    assert whole.read.last_line == 2000
    await session.tool("write", path="n.txt", content="a\n" * 2001)
    cut = await session.tool("read", path="n.txt")
    assert cut.text.endswith("\n[Showing lines 1-2000 of 2001. Use offset=2001 to continue.]")


async def test_read_shows_exactly_fifty_kilobytes(session: OpenSession) -> None:
    # 512 lines of 100 bytes, newline included, are 51,200 bytes.
    await session.tool("write", path="b.txt", content=("y" * 99 + "\n") * 512)
    assert not (await session.tool("read", path="b.txt")).truncated
    await session.tool("write", path="b.txt", content=("y" * 99 + "\n") * 513)
    cut = await session.tool("read", path="b.txt")
    assert cut.text.endswith("[Showing lines 1-512 of 513. Use offset=513 to continue.]")


async def test_read_says_what_is_wrong_with_a_path(session: OpenSession) -> None:
    await session.tool("write", path="main.py", content="a\nb\nc\n")
    cases = {
        "mian.py": "File not found: mian.py\nDid you mean: main.py?",
        ".": ". is a directory. Use glob or bash ls to list it.",
    }
    for path, text in cases.items():
        result = await session.tool("read", path=path)
        assert result.is_error
        assert result.text.replace(". Did", "\nDid").replace(" Did", "\nDid") == text
        assert result.ending == tool_pb2.ENDING_COMPLETED
    past = await session.tool("read", path="main.py", offset=4)
    assert past.is_error
    assert past.text == "Offset 4 is beyond the end of the file (3 lines)."
    assert past.reason == error_pb2.REASON_OFFSET_BEYOND_END
    await session.tool("write", path="empty", content="")
    assert (await session.tool("read", path="empty")).text == "[File is empty]"


async def test_write_counts_bytes_and_keeps_mode_and_link(session: OpenSession) -> None:
    await session.bash("printf old > real.sh; chmod 750 real.sh; ln -s real.sh link.sh")
    result = await session.tool("write", path="link.sh", content="é\n")
    assert result.text == "Wrote 3 bytes to link.sh."
    shown = await session.bash("stat -c '%a %F' real.sh link.sh; cat real.sh")
    assert shown.text == "750 regular file\n777 symbolic link\né\n"
    # Two names of one file: written in place, which by itself would clear the set-id bits.
    await session.bash("printf old > one; ln one two; chmod 6755 one")
    await session.tool("write", path="two", content="new")
    assert (await session.bash("stat -c %a one; cat one")).text == "6755\nnew"
    one = await session.tool("write", path="a/b/c", content="x")
    assert one.text == "Wrote 1 byte to a/b/c."
    assert one.write.created


async def test_edit_texts_are_to_the_letter(session: OpenSession) -> None:
    await session.tool("write", path="e.txt", content="x = 1\ny = 2\nx = 1\n")
    several = await session.tool("edit", path="e.txt", oldText="x = 1", newText="x = 3")
    assert several.text == (
        "oldText matches 2 places in e.txt (lines 1, 3). Add more surrounding context to make "
        "it unique, or set replaceAll."
    )
    none = await session.tool("edit", path="e.txt", oldText="x  = 1", newText="x = 3")
    assert none.text.startswith(
        "Could not find oldText in e.txt. Check whitespace and indentation: it must match exactly."
    )
    same = await session.tool("edit", path="e.txt", oldText="y", newText="y")
    assert same.text == "oldText and newText are identical: nothing to change."
    empty = await session.tool("edit", path="e.txt", oldText="", newText="y")
    assert empty.text == "oldText is empty. Use write to create or replace a whole file."
    one = await session.tool("edit", path="e.txt", oldText="y = 2", newText="y = 5")
    assert one.text == "Edited e.txt: 1 replacement at line 2."
    both = await session.tool(
        "edit", path="e.txt", oldText="x = 1", newText=r"x = \1$&", replaceAll=True
    )
    assert both.text == "Edited e.txt: 2 replacements at lines 1, 3."
    read = await session.tool("read", path="e.txt")
    assert read.text.rstrip("\n") == "x = \\1$&\ny = 5\nx = \\1$&"


async def test_hundred_parallel_edits_through_four_names_lose_none(session: OpenSession) -> None:
    await session.tool("write", path="d/f.txt", content="".join(f"<{n}>\n" for n in range(100)))
    await session.bash("ln -s d/f.txt soft; ln d/f.txt hard")
    names = ["d/f.txt", "soft", "hard", f"{session.workdir}/d/../d/f.txt"]
    results = await asyncio.gather(
        *(
            session.tool("edit", path=names[n % 4], oldText=f"<{n}>", newText=f"[{n}]")
            for n in range(100)
        )
    )
    assert [result.text for result in results if result.is_error] == []
    final = await session.bash("cat d/f.txt")
    assert final.text.split() == [f"[{n}]" for n in range(100)]


async def test_bash_returns_with_a_background_job_and_lists_it(session: OpenSession) -> None:
    begun = time.monotonic()
    result = await session.bash("sleep 300 & echo hi")
    assert time.monotonic() - begun < 1.0
    pid = result.survivors[0].pid
    assert result.text == f"hi\n[Background processes still running: {pid} sleep]"
    assert result.ending == tool_pb2.ENDING_EXITED
    alive = await session.bash(f"kill -0 {pid} && kill {pid}; echo $?")
    assert alive.text.strip() == "0"


async def test_bash_timeout_leaves_no_process(session: OpenSession) -> None:
    result = await session.bash("echo $$; setsid sleep 300.125 & sleep 300.125", timeout=1)
    assert result.ending == tool_pb2.ENDING_TIMED_OUT
    assert result.exit_code == 124
    assert not result.is_error
    assert result.text.endswith("[Command timed out after 1 second]")
    assert list(result.survivors) == []
    left = await session.bash("ps -eo args | grep -c '[s]leep 300.125'")
    assert left.text.split()[0] == "0"


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("KILL", 9), ("SEGV", 11)])
async def test_bash_exit_by_signal_is_128_plus_n(
    session: OpenSession, name: str, number: int
) -> None:
    result = await session.bash(f"kill -{name} $$")
    assert result.exit_code == 128 + number
    assert result.signal == number
    assert result.ending == tool_pb2.ENDING_SIGNALED
    assert not result.is_error
    assert result.text.endswith(f"[Command was killed by SIG{name} (exit code {128 + number})]")


async def test_bash_texts_are_to_the_letter(session: OpenSession) -> None:
    assert (await session.bash("true")).text == "(no output)"
    failed = await session.bash("echo out; echo err >&2; exit 3")
    assert failed.text == "out\nerr\n[Command exited with code 3]"
    assert not failed.is_error
    binary = await session.bash("head -c 100000 /dev/zero")
    assert binary.text == "[Binary output, 100000 bytes]"
    clamped = await session.bash("echo x", timeout=9999)
    assert clamped.text == "x\n[Timeout reduced to the maximum of 3600 seconds]"
    assert clamped.bash.timeout_clamped


async def test_bash_keeps_the_last_two_thousand_lines_and_a_spill_file(
    session: OpenSession,
) -> None:
    result = await session.bash("seq 1 2001")
    first, rest = result.text.split("\n", 1)
    assert first == (
        "[Showing the last 2000 of 2001 lines (8896 of 8898 bytes). "
        f"Full output: {result.spill_path}]"
    )
    assert rest.split() == [str(number) for number in range(2, 2002)]
    assert (result.lines_total, result.bytes_total, result.truncated) == (2001, 8898, True)
    spilled = await session.bash(f"wc -c < {result.spill_path}")
    assert spilled.text.strip() == "8898"
    assert not (await session.bash("seq 1 2000")).truncated


async def test_bash_same_call_id_runs_nothing_again(session: OpenSession) -> None:
    first = await session.bash("echo run >> ran; cat ran", call_id="once")
    again = await session.bash("echo run >> ran; cat ran", call_id="once")
    assert again.replayed
    assert not first.replayed
    again.replayed = False
    assert again.SerializeToString(deterministic=True) == first.SerializeToString(
        deterministic=True
    )
    assert (await session.bash("cat ran")).text.strip() == "run"


async def test_grep_rows_are_in_path_order_and_capped(session: OpenSession) -> None:
    await session.bash(
        "mkdir -p a a-b; for f in a/x a-b/x a.txt; do "
        "for i in $(seq 1 40); do echo needle $i; done > $f; done"
    )
    result = await session.tool("grep", pattern="needle")
    rows = result.text.split("\n")
    assert rows[-1] == (
        "[Showing the first 100 matches; more exist. Narrow the pattern, path or include.]"
    )
    assert [row.rsplit(":", 2)[0] for row in rows[:-1]] == (
        ["a-b/x"] * 40 + ["a.txt"] * 40 + ["a/x"] * 20
    )
    assert result.grep.capped
    assert (await session.tool("grep", pattern="n0thing")).text == "No matches found."


async def test_grep_cuts_a_line_at_five_hundred_characters(session: OpenSession) -> None:
    await session.tool("write", path="l", content="é" * 3000 + "needle" + "é" * 3000 + "\n")
    result = await session.tool("grep", pattern="needle")
    text = result.grep.matches[0].text
    assert "needle" in text
    assert text.startswith("…")
    assert text.endswith("…")
    assert len(text.strip("…")) == 500 or len(text) == 500


async def test_grep_tells_of_ignored_matches(session: OpenSession) -> None:
    await session.bash(
        "git init -q . && mkdir build && echo build/ > .gitignore && echo hidden > build/f"
    )
    result = await session.tool("grep", pattern="hidden")
    assert result.text == (
        "No matches found. 1 match is in git-ignored files under build: "
        "pass one of these paths to search them."
    )


async def test_glob_shows_the_first_thousand_in_order(session: OpenSession) -> None:
    await session.bash("mkdir m; cd m; for i in $(seq -w 1 1001); do : > f$i.c; done")
    result = await session.tool("glob", pattern="*.c")
    rows = result.text.split("\n")
    assert rows[:1000] == [f"m/f{number:04}.c" for number in range(1, 1001)]
    assert rows[1000] == "[Showing the first 1000 paths; more exist. Narrow the pattern or path.]"
    assert (await session.tool("glob", pattern="*.none")).text == "No files found."
    slash = await session.tool("glob", pattern="src/*.py")
    assert slash.is_error
    assert slash.text == ('glob matches file names, not paths. Use path="src" and pattern="*.py".')


async def test_faults_of_input_are_results_and_change_nothing(session: OpenSession) -> None:
    faults: list[tuple[str, dict[str, Any]]] = [
        ("read", {"path": "x\0y"}),
        ("read", {"path": "x", "offset": 0}),
        ("read", {"path": "x", "limit": -1}),
        ("write", {"path": "x"}),
        ("bash", {"command": "true", "timeout": -1}),
        ("grep", {"pattern": ""}),
        ("glob", {"pattern": "*", "unknown": 1}),
    ]
    for name, arguments in faults:
        result = await session.tool(name, **arguments)
        assert result.is_error, (name, arguments)
        assert result.reason == error_pb2.REASON_INVALID_INPUT
        assert result.ending == tool_pb2.ENDING_COMPLETED
