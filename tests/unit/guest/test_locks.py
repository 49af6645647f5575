"""The file locks: one key for all names, first come first served, no leak."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.guest import locks
from sandboxd.guest.locks import FileLocks, Key, entry_identity, identity
from sandboxd.guest.ops import Machine, OpError, Request

MACHINE = Machine(mode="container", workdir="/", home="/")


def request() -> Request:
    return Request(MACHINE, "write", {})


def until(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def waiting(table: FileLocks) -> int:
    with table._guard:
        return sum(len(queue) - 1 for queue in table._queues.values())


def test_identity_is_one_for_all_names_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "d").mkdir()
    os.link(file, tmp_path / "hard")
    os.symlink("file", tmp_path / "soft")
    os.symlink(tmp_path, tmp_path / "d" / "up")
    names = ["file", "hard", "soft", "d/../file", "./file", "d/up/soft"]
    assert len({identity(f"{tmp_path}/{name}") for name in names}) == 1
    assert entry_identity(str(tmp_path / "soft")) != identity(str(tmp_path / "soft"))


def test_identity_of_a_new_file_is_its_directory_and_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.symlink("new", tmp_path / "dangling")
    os.symlink(tmp_path, tmp_path / "d" / "up")
    names = ["new", "dangling", "d/up/new", "d/../new"]
    assert len({identity(f"{tmp_path}/{name}") for name in names}) == 1
    with pytest.raises(FileNotFoundError):
        identity(f"{tmp_path}/missing/new")


def test_lock_serves_waiters_in_order_and_leaves_nothing() -> None:
    table = FileLocks()
    key: Key = (1, 2, "")
    order: list[int] = []

    def work(number: int) -> None:
        with table.hold(lambda: (key,), request()):
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    with table.hold(lambda: (key,), request()):
        for count, thread in enumerate(threads, 1):
            thread.start()
            until(lambda count=count: waiting(table) == count)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    assert len(table) == 0


def test_lock_is_taken_again_where_the_file_became_another() -> None:
    table = FileLocks()
    current: list[Key] = [(1, 1, "")]
    entered = threading.Event()
    holding = threading.Event()
    done = threading.Event()

    def late() -> None:
        with table.hold(lambda: (current[0],), request()):
            entered.set()

    def holder_of_the_new() -> None:
        with table.hold(lambda: ((1, 2, ""),), request()):
            holding.set()
            done.wait(10)

    with table.hold(lambda: (current[0],), request()):
        thread = threading.Thread(target=late)
        thread.start()
        until(lambda: waiting(table) == 1)
        other = threading.Thread(target=holder_of_the_new)
        other.start()
        assert holding.wait(10)
        current[0] = (1, 2, "")
    # The late one got the old key, saw the new one, and now waits for that.
    until(lambda: waiting(table) == 1 and len(table) == 1)
    assert not entered.is_set()
    done.set()
    thread.join(10)
    other.join(10)
    assert entered.is_set()
    assert len(table) == 0


def test_lock_wait_ends_with_a_cancel() -> None:
    table = FileLocks()
    waiter = request()
    reasons: list[str] = []

    def work() -> None:
        try:
            with table.hold(lambda: ((1, 1, ""),), waiter):
                reasons.append("held")
        except OpError as error:
            reasons.append(error.reason)

    with table.hold(lambda: ((1, 1, ""),), request()):
        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: waiting(table) == 1)
        waiter.cancel()
        thread.join(10)
        assert reasons == ["CANCELLED_BY_CALLER"]
        assert waiting(table) == 0
    assert len(table) == 0


def test_lock_wait_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WAIT_S", 0.05)
    table = FileLocks()
    with table.hold(lambda: ((1, 1, ""),), request()):
        with pytest.raises(OpError) as caught, table.hold(lambda: ((1, 1, ""),), request()):
            pass
    assert caught.value.reason == "FILE_BUSY"
    assert len(table) == 0


def test_locks_of_two_files_in_both_orders_never_deadlock() -> None:
    table = FileLocks()
    a: Key = (1, 1, "")
    b: Key = (1, 2, "")
    rounds = [0]
    guard = threading.Lock()

    def work(keys: tuple[Key, ...]) -> None:
        for _ in range(300):
            with table.hold(lambda: keys, request()):
                assert guard.acquire(blocking=False)
                rounds[0] += 1
                guard.release()

    threads = [
        threading.Thread(target=work, args=(keys,), daemon=True)
        for keys in ((a, b), (b, a), (b, a), (a, b))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert rounds[0] == 1_200
    assert len(table) == 0


def test_lock_that_cannot_be_identified_leaves_nothing() -> None:
    table = FileLocks()
    answers = iter([((1, 1, ""),)])

    def identify() -> tuple[Key, ...]:
        try:
            return next(answers)
        except StopIteration:
            raise FileNotFoundError from None

    with pytest.raises(FileNotFoundError), table.hold(identify, request()):
        pass
    assert len(table) == 0
