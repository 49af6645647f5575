"""The waiter, from inside a process of its own: it takes every child of its process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PRELUDE = """
import os, signal, sys, time, threading
from sandboxd.guest import harden, tree
from sandboxd.guest.children import CHILDREN
from sandboxd.guest.ops import OpError

def spawn(script, **options):
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        return CHILDREN.spawn(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"},
                              stdout=null, stderr=null, **options)
    finally:
        os.close(null)

def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)

def zombies():
    return [process.pid for process in tree.zombies_of(os.getpid())]

harden.default_signals(keep_ignored=True)
harden.hold_oom_score()
harden.become_subreaper()
CHILDREN.open()

"""

# The waiter has to be the first thread, so the test is the second.
FRAME = """
def in_thread():
    try:
        exec(compile(SCRIPT, "script", "exec"), globals())
    except BaseException:
        import traceback
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)

threading.Thread(target=in_thread).start()
CHILDREN.wait_for_ever()
"""


def inside(script: str) -> str:
    """Runs a script in a new process whose only waiter is the guest's."""
    done = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}\nSCRIPT = {textwrap.dedent(script)!r}\n{FRAME}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_children_are_reaped_with_their_codes() -> None:
    inside("""
        started = [(n, spawn(f"exit {n}")) for n in range(50)]
        for code, child in started:
            assert child.wait(10)
            assert (child.exit_code, child.signal) == (code, None)
        killed = spawn("kill -TERM $$")
        assert killed.wait(10)
        assert (killed.exit_code, killed.signal) == (None, signal.SIGTERM)
        until(lambda: not zombies() and not CHILDREN.leaders())
    """)


def test_child_that_is_held_stays_a_zombie_until_it_is_released() -> None:
    inside("""
        held = spawn("exit 7", hold=True)
        assert held.wait(10)
        assert held.exit_code == 7
        time.sleep(0.2)
        assert zombies() == [held.pid]
        CHILDREN.release(held)
        until(lambda: not zombies())
        assert CHILDREN.leaders() == set()
    """)


def test_waiter_reaps_everything_else_while_one_is_held() -> None:
    # Security S6: a waiter that looks only at the first zombie fills the pid limit.
    inside("""
        held = spawn("exit 0", hold=True)
        assert held.wait(10)
        begun = time.monotonic()
        for n in range(20):
            child = spawn(f"exit {n}")
            assert child.wait(10)
            assert child.exit_code == n
        # Ends are seen as they happen, not at the next look around.
        assert time.monotonic() - begun < 2
        orphans = spawn("for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.05 &) ; done")
        assert orphans.wait(10)
        until(lambda: zombies() == [held.pid])
        CHILDREN.release(held)
        until(lambda: not zombies())
    """)


def test_waiter_reaps_orphans() -> None:
    inside("""
        child = spawn("for i in $(seq 50); do (sleep 0.1 &) ; done; exit 3")
        assert child.wait(10)
        assert child.exit_code == 3
        until(lambda: tree.has_orphans())
        until(lambda: not tree.has_orphans())
        assert not zombies()
    """)


def test_signal_reaches_the_whole_group_and_never_a_reaped_child() -> None:
    inside("""
        child = spawn("sleep 300 & sleep 300")
        CHILDREN.kill_group(child, signal.SIGKILL)
        assert child.wait(10)
        assert child.signal == signal.SIGKILL
        until(lambda: not CHILDREN.leaders())
        sent = []
        os.killpg = lambda *arguments: sent.append(arguments)
        CHILDREN.kill_group(child, signal.SIGKILL)
        assert sent == []
    """)


def test_child_has_its_own_session_default_signals_and_no_descriptors() -> None:
    output = inside("""
        reading, writing = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        script = '''
            read pid comm state ppid pgrp sid rest < /proc/$$/stat
            [ $pid = $pgrp ] && [ $pid = $sid ] && echo leader
            while read name value; do
                case $name in SigBlk:|SigIgn:) echo $name $value;; esac
            done < /proc/self/status
            cat /proc/$$/oom_score_adj
            ls /proc/$$/fd
            :
        '''
        child = CHILDREN.spawn(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"},
                               stdout=writing, stderr=writing)
        assert child.wait(10)
        print(os.read(reading, 9999).decode())
        print("own", open("/proc/self/oom_score_adj").read())
    """)

    lines = output.split()
    assert lines[0] == "leader"
    assert lines[2] == "0" * 16
    # The C library keeps its two internal signals ignored in everything that it starts.
    assert int(lines[4], 16) & ~(0b11 << 31) == 0
    own = int(lines[-1])
    assert int(lines[5]) == min(own + 500, 1000)
    assert lines[6:9] == ["0", "1", "2"]
    assert lines[9] == "own"


def test_spawn_of_what_cannot_run_is_an_error_at_once() -> None:
    inside("""
        begun = time.monotonic()
        try:
            CHILDREN.spawn(["/no/such"], {}, stdout=1, stderr=2)
        except OpError as error:
            assert error.reason == "SPAWN_FAILED" and not error.facts
        else:
            raise AssertionError("it started")
        assert time.monotonic() - begun < 0.5
        child = spawn("exit 0")
        assert child.wait(10)
    """)


def test_spawn_is_tried_again_while_no_process_can_be_made() -> None:
    inside("""
        real, tries = os.posix_spawn, []
        def refuses(*arguments, **options):
            tries.append(time.monotonic())
            if len(tries) < 5:
                raise BlockingIOError
            return real(*arguments, **options)
        os.posix_spawn = refuses
        assert spawn("exit 0").wait(10)
        assert len(tries) == 5

        def always(*arguments, **options):
            raise BlockingIOError
        os.posix_spawn = always
        try:
            spawn("exit 0")
        except OpError as error:
            assert error.reason == "SPAWN_FAILED" and error.facts == {"exhausted": True}
        else:
            raise AssertionError("it started")
    """)


@pytest.mark.tool_case("B39")
@pytest.mark.parametrize("threads", [16])
def test_children_of_many_threads_get_their_own_codes(threads: int) -> None:
    inside(f"""
        faults = []
        def many(base):
            for n in range(20):
                child = spawn(f"exit {{(base + n) % 200}}", hold=n % 2 == 0)
                if not child.wait(20) or child.exit_code != (base + n) % 200:
                    faults.append((base, n, child.exit_code))
                CHILDREN.release(child)
        workers = [threading.Thread(target=many, args=(7 * n,)) for n in range({threads})]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
        assert faults == []
        until(lambda: not CHILDREN.leaders() and not zombies())
    """)
