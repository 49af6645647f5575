"""What is kept of outputs: by offset, bounded, and never without a word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.guest import process_ring, process_table
from sandboxd.guest.ops import OpError
from sandboxd.guest.process_ring import PIECE_BYTES, STREAM_BYTES_MAX, Ring
from sandboxd.guest.process_table import Input, Process, Table


def content(start: int, end: int) -> bytes:
    """The bytes that belong at these offsets."""
    return bytes(at % 251 for at in range(start, end))


@given(st.lists(st.integers(1, 400), max_size=60), st.data())
def test_ring_reads_the_right_bytes_at_every_offset(sizes: list[int], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_ring, "STREAM_BYTES_MAX", 1_000)
        patch.setattr(process_ring, "PIECE_BYTES", 100)
        ring, kept = Ring(), 0
        for size in sizes:
            kept += ring.feed(content(ring.end, ring.end + size))
            assert kept == ring.kept == ring.end - ring.start
            # All that is announced, and one piece more at most.
            assert min(ring.end, 1_000) <= ring.kept < 1_000 + 400
        offset = data.draw(st.integers(ring.start, ring.end))
        most = data.draw(st.integers(1, 1_200))
        assert ring.read(offset, most) == content(offset, min(ring.end, offset + most))


def test_ring_of_single_bytes_takes_little_more_than_its_bytes() -> None:
    ring = Ring()
    for _ in range(3 * PIECE_BYTES):
        ring.feed(b"x")
    assert len(ring._pieces) == 3


def test_ring_keeps_what_is_announced_of_a_flood() -> None:
    ring = Ring()
    for _ in range(100):
        ring.feed(b"x" * PIECE_BYTES)
    assert STREAM_BYTES_MAX <= ring.kept <= STREAM_BYTES_MAX + PIECE_BYTES
    assert ring.end == 100 * PIECE_BYTES


class _Ended:
    """In place of a child: a table asks nothing of it but that it is there."""

    pid = 1
    exit_code = 0
    signal = None


def make(table: Table, name: str, size: int = 0) -> Process:
    child: Any = _Ended()
    process = Process(name, child, child, Input(-1, False), terminal=None, timeout_s=None)
    assert table.begin(name) is None
    table.add(process)
    table.give_up(name)
    if size:
        table.feed(process, process.rings["stdout"], b"x" * size)
    return process


def kept(*processes: Process) -> list[int]:
    return [process.rings["stdout"].kept for process in processes]


def test_table_drops_first_what_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "OUTPUT_BYTES_MAX", 250)
    table = Table()
    running, early = make(table, "running", 100), make(table, "early", 100)
    table.ended(early)
    late = make(table, "late", 100)
    assert kept(running, early, late) == [100, 0, 100]
    table.feed(running, running.rings["stdout"], b"y" * 90)
    # Nothing of an ended one is left: the largest gives way.
    assert sum(kept(running, early, late)) <= 250
    assert kept(early, late) == [0, 100]


def test_table_clears_the_outputs_of_old_ends_and_knows_their_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_table, "ENDED_MAX", 2)
    table = Table()
    made = [make(table, f"p{number}", 10) for number in range(4)]
    dropped = [table.ended(process) for process in made]
    assert [[each.process_id for each in one] for one in dropped] == [[], [], ["p0"], ["p0", "p1"]]
    assert kept(*made) == [0, 0, 10, 10]
    assert table.find("p0").facts()["exit_code"] == 0
    assert [each.process_id for each in table.listed()] == ["p2", "p3"]


def test_table_takes_as_many_running_processes_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "PROCESSES_MAX", 2)
    table = Table()
    first = make(table, "a")
    assert table.begin("b") is None  # on its way: it takes a place as well
    with pytest.raises(OpError) as refused:
        table.begin("c")
    assert refused.value.reason == "CALLS_EXHAUSTED"
    assert table.begin("a") is first
    table.ended(first)
    assert table.begin("c") is None


def test_table_forgets_the_oldest_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "REMEMBERED_MAX", 2)
    table = Table()
    running = make(table, "runs")
    table.ended(make(table, "old"))
    make(table, "new")
    assert table.find("runs") is running
    with pytest.raises(OpError) as unknown:
        table.find("old")
    assert unknown.value.reason == "PROCESS_UNKNOWN"
