"""The state folder: its lock, its format, its identity; and the ledger's bounds."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from sandbox_adapter.v1 import tool_pb2
from sandboxd.config import ProfileSettings
from sandboxd.errors import EXIT_STATE, LedgerFull, StartupError
from sandboxd.sessions import store as store_module
from sandboxd.sessions.ledger import Ledger, Reservation
from sandboxd.sessions.records import CallPhase, SessionKey, SessionRecord
from sandboxd.sessions.session_table import SessionTable
from sandboxd.sessions.store import Store

KEY = SessionKey("default", "s1")


async def test_second_daemon_on_one_state_folder_is_refused(tmp_path: Path) -> None:
    first = Store(tmp_path)
    await first.open()
    with pytest.raises(StartupError) as refused:
        await Store(tmp_path).open()
    assert refused.value.exit_code == EXIT_STATE
    assert "in use" in str(refused.value)
    await first.close()
    again = Store(tmp_path)
    await again.open()
    await again.close()


async def test_state_of_a_newer_version_is_refused_untouched(tmp_path: Path) -> None:
    first = Store(tmp_path)
    await first.open()
    await first.close()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StartupError) as refused:
        await Store(tmp_path).open()
    assert refused.value.exit_code == EXIT_STATE
    assert "99" in str(refused.value)


async def test_file_that_is_no_database_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database at all, but long enough to look at" * 40)
    with pytest.raises(StartupError) as refused:
        await Store(tmp_path).open()
    assert refused.value.exit_code == EXIT_STATE
    assert "\n" not in str(refused.value)


async def _ledger_id(folder: Path, *, crash: bool = False) -> str:
    store = Store(folder)
    await store.open()
    found = store.ledger_id
    if crash:
        # The end of a process that gets no chance to say goodbye.
        await store.run(lambda connection: None)
        connection = store._connection
        assert connection is not None
        store._thread.submit(connection.close).result()
        store._thread.shutdown()
        store._unlock()
    else:
        await store.close()
    return found


async def test_ledger_id_survives_everything_but_an_unclean_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("boot-1\n")
    monkeypatch.setattr(store_module, "_HOST_BOOT_ID", boot)
    folder = tmp_path / "state"
    first = await _ledger_id(folder)
    assert await _ledger_id(folder, crash=True) == first
    assert await _ledger_id(folder) == first
    boot.write_text("boot-2\n")
    assert await _ledger_id(folder, crash=True) == first
    boot.write_text("boot-3\n")
    assert await _ledger_id(folder) != first


async def _with_session(store: Store) -> None:
    record = SessionRecord(KEY, "r1", ProfileSettings(), b"d", {}, {}, 0.0, 0.0, 1.0, 1.0)
    await SessionTable(store).insert(record)


def _call(call_id: str, *, is_read: bool) -> Reservation:
    return Reservation(KEY, call_id, b"d", "t", is_read, 1, 0.0)


async def test_oldest_reads_expire_first_and_effects_never(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    await ledger.open()
    for index in range(12):
        call = _call(f"c{index:02}", is_read=index % 2 == 0)
        await ledger.reserve(call)
        await ledger.record(call, b"x" * 100, float(index), restart_told=False)
    phases = {
        index: found.phase
        for index in range(12)
        if (found := await ledger.find(KEY, f"c{index:02}")) is not None
    }
    assert all(phases[index] is CallPhase.FINISHED for index in range(1, 12, 2))
    expired = [index for index in phases if phases[index] is CallPhase.EXPIRED]
    assert expired == sorted(expired)
    assert expired[0] == 0
    assert 10 not in expired
    await store.close()


async def test_ledger_full_of_effects_refuses_instead_of_forgetting(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=300, rows_max=100)
    await ledger.open()
    for index in range(3):
        call = _call(f"c{index}", is_read=False)
        await ledger.reserve(call)
        await ledger.record(call, b"x" * 100, 0.0, restart_told=False)
    with pytest.raises(LedgerFull):
        await ledger.reserve(_call("more", is_read=False))
    assert await ledger.find(KEY, "more") is None
    await ledger.forget(KEY)
    await ledger.reserve(_call("more", is_read=False))
    await store.close()


async def test_first_recorded_result_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    call = _call("c1", is_read=False)
    await ledger.reserve(call)
    for text in ("first", "late"):
        result = tool_pb2.ToolResult(text=text, ending=tool_pb2.ENDING_COMPLETED)
        await ledger.record(call, result.SerializeToString(), 1.0, restart_told=False)
    found = await ledger.find(KEY, "c1")
    assert found is not None
    assert found.result is not None
    assert tool_pb2.ToolResult.FromString(found.result).text == "first"
    await store.close()


async def test_reserved_calls_are_there_for_the_next_daemon_and_forgotten_once_recorded(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    await store.open()
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    memo = {"words": {"path": "f"}, "reply_bytes_max": 5, "timeout_s": 1.5}
    call = dataclasses.replace(_call("c1", is_read=True), memo=memo)
    assert await ledger.reserve(call) == 1
    assert await ledger.reserve(_call("c2", is_read=False)) == 2
    await store.close()
    store = Store(tmp_path)
    await store.open()
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    found = await ledger.reserved(KEY)
    assert [(each.call_id, each.sequence, each.memo) for each in found] == [
        ("c1", 1, memo),
        ("c2", 2, None),
    ]
    await ledger.record(call, b"r", 1.0, restart_told=False)
    assert [each.call_id for each in await ledger.reserved(KEY)] == ["c2"]
    await store.close()


async def test_s16_ledger_id_is_renewed_for_a_guest_that_has_seen_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    await ledger.reserve(_call("c1", is_read=True))
    before = store.ledger_id
    assert await ledger.sequence(KEY) == 1
    await ledger.set_back(KEY, 7)
    assert store.ledger_id != before
    # The next daemon does not find it set back once more.
    assert await ledger.sequence(KEY) == 7
    assert await ledger.reserve(_call("c2", is_read=True)) == 8
    await ledger.set_back(KEY, 2**62)
    assert await ledger.reserve(_call("c3", is_read=True)) == 2**53 + 1
    renewed = store.ledger_id
    await store.close()
    store = Store(tmp_path)
    await store.open()
    assert store.ledger_id == renewed
    await store.close()


async def test_s16_ledger_id_is_renewed_where_the_database_is_a_copy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.open()
    before = store.ledger_id
    await store.close()
    (tmp_path / "copy").write_bytes((tmp_path / "state.db").read_bytes())
    (tmp_path / "copy").rename(tmp_path / "state.db")
    store = Store(tmp_path)
    await store.open()
    assert store.ledger_id != before
    await store.close()


async def test_state_of_the_first_format_is_taken_up(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.executescript(f"{store_module._SCHEMA} PRAGMA user_version = 1;")
        connection.execute("INSERT INTO meta VALUES ('ledger_id', 'l-old'), ('clean', '1')")
    connection.close()
    store = Store(tmp_path)
    await store.open()
    assert store.ledger_id == "l-old"
    await _with_session(store)
    ledger = Ledger(store, result_bytes_max=1_000, rows_max=100)
    assert await ledger.reserve(_call("c1", is_read=False)) == 1
    await store.close()
