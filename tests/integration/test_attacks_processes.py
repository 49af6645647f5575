"""Bombs, hoards and greed inside one container: the session lives on (security S6, S4).

Only ever inside containers with limits.
"""

from __future__ import annotations

import asyncio
import textwrap
import time

import pytest

from sandbox_adapter.v1 import tool_pb2
from tests.integration.conftest import OpenSession
from tests.integration.daemon_process import until

# A bomb and its end take their time where processors are few.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(150)]
RECOVER_S_MAX = 40.0

UNDUMPABLE_BOMB = r"""
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    signal(SIGTERM, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0);
    for (;;) if (!fork()) setsid();
}
"""
THREADS = """
import threading, time
for _ in range(2000):
    try:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except RuntimeError:
        time.sleep(0.001)
time.sleep(1000)
"""
BOMBS = {
    "in the background": ":(){ :|:& };: & disown; echo",
    "shedding session and marker": (
        "printf '%s\\n' 'while :; do setsid env -i sh /tmp/b >/dev/null 2>&1 & done' > /tmp/b; "
        "setsid env -i sh /tmp/b >/dev/null 2>&1 & sleep 1"
    ),
    "undumpable": "gcc -o /tmp/bomb /tmp/bomb.c && (env -i setsid /tmp/bomb >/dev/null 2>&1 &)",
    "sleepers": "for i in $(seq 600); do env -i setsid -f sleep 1000 >/dev/null 2>&1; done",
    "threads": "env -i setsid -f python3 /tmp/threads.py >/dev/null 2>&1; sleep 1",
    "zombies": (
        "python3 -c 'import os, time\nfor _ in range(450):\n  os.fork() or os._exit(0)\n"
        "time.sleep(1000)' >/dev/null 2>&1 & sleep 1"
    ),
}


@pytest.fixture
async def session(docker_session: OpenSession) -> OpenSession:
    await docker_session.tool("write", path="/tmp/bomb.c", content=UNDUMPABLE_BOMB)
    await docker_session.tool("write", path="/tmp/threads.py", content=THREADS)
    return docker_session


async def works_again(session: OpenSession) -> None:
    """A command that starts processes itself gets them, after tries that may meet the bomb.

    One that is still growing is felt by the command that it leaves without processes.
    """
    command = "for i in 1 2 3; do (echo $i | cat); done"
    end = time.monotonic() + RECOVER_S_MAX
    while (result := await session.bash(command, timeout=8)).text != "1\n2\n3\n":
        assert time.monotonic() < end, result
        assert result.generation == 1
    assert result.generation == 1


@pytest.mark.parametrize("bomb", BOMBS)
async def test_s6_bomb_that_outlives_its_call_does_not_end_the_session(
    session: OpenSession, bomb: str
) -> None:
    before = session.daemon.rss_bytes()
    await session.bash(BOMBS[bomb], timeout=8)
    await works_again(session)
    assert session.daemon.rss_bytes() - before < 10 * 1024 * 1024


async def test_s6_calls_beside_a_bomb_get_their_answers(session: OpenSession) -> None:
    bomb = asyncio.create_task(session.bash(":(){ :|:& };:; sleep 4", timeout=4))
    # It fills the process limit in a moment, and nothing inside could tell when.
    await asyncio.sleep(0.5)
    read = await session.tool("read", path="/etc/passwd", limit=1)
    assert read.text.startswith("sandbox:")
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*[session.bash("echo beside") for _ in range(15)])
    # Each has ended, in one of the ways that a command beside a bomb can end.
    assert all(answer.ending != tool_pb2.ENDING_SANDBOX_LOST for answer in answers)
    await bomb
    await works_again(session)


async def test_s1_native_tricks_do_not_reach_process_1(session: OpenSession) -> None:
    await session.tool(
        "write",
        path="/tmp/tricks.c",
        content=textwrap.dedent(
            r"""
            #define _GNU_SOURCE
            #include <fcntl.h>
            #include <sched.h>
            #include <signal.h>
            #include <stdio.h>
            #include <string.h>
            #include <sys/socket.h>
            #include <sys/syscall.h>
            #include <unistd.h>
            static void refused(const char *name, long result) {
                if (result >= 0) printf("NOT REFUSED %s\n", name);
            }
            int main(void) {
                unsigned long few[2] = {4, 4};
                refused("high bits", syscall(SYS_prlimit64, 0x100000001L, 7, few, 0));
                refused("group", syscall(SYS_setpriority, 1, 1, 19));
                refused("own group", syscall(SYS_setpriority, 1, 0, 19));
                refused("user", syscall(SYS_setpriority, 2, 0, 19));
                refused("io of the group", syscall(SYS_ioprio_set, 2, 1, 3 << 13));
                refused("io of the user", syscall(SYS_ioprio_set, 3, 0, 3 << 13));
            #ifdef __x86_64__
                refused("x32", syscall(0x40000000 | SYS_prlimit64, 1, 7, few, 0));
                refused("x32 getpid", syscall(0x40000000 | SYS_getpid));
                long result;
                __asm__ volatile("int $0x80" : "=a"(result)
                                 : "a"(340), "b"(1), "c"(7), "d"(few), "S"(0) : "memory");
                refused("32 bit prlimit64", result);
                __asm__ volatile("int $0x80" : "=a"(result) : "a"(20));
                refused("32 bit getpid", result);
            #endif
                long pidfd = syscall(SYS_pidfd_open, 1, 0);
                syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, 0, 0);
                syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, 0, 0);
                refused("setns", syscall(SYS_setns, pidfd, CLONE_NEWNS));
                refused("process_vm_writev", syscall(SYS_process_vm_writev, 1, 0, 0, 0, 0, 0));
                refused("unshare", unshare(CLONE_NEWUSER));
                siginfo_t info;
                memset(&info, 0, sizeof info);
                info.si_code = -1;
                info.si_signo = SIGKILL;
                syscall(SYS_rt_sigqueueinfo, 1, SIGKILL, &info);
                int pair[2];
                socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
                fcntl(pair[0], F_SETOWN, 1);
                fcntl(pair[0], F_SETSIG, SIGKILL);
                fcntl(pair[0], F_SETFL, O_ASYNC | O_NONBLOCK);
                write(pair[1], "x", 1);
                /* Children given to process 1 at once, with and without a signal. */
                if (!syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)) _exit(7);
                if (!syscall(SYS_clone, CLONE_PARENT, 0, 0, 0, 0)) _exit(8);
                puts("done");
                return 0;
            }
            """
        ),
    )
    result = await session.bash("cd /tmp && gcc -w -o tricks tricks.c && ./tricks")
    assert result.text == "done\n"
    # No zombie is left of what was given to process 1.

    async def no_zombie() -> bool:
        return (await session.bash("ps -eo stat= | grep -c Z")).text.startswith("0\n")

    await until(no_zombie, 10)
    await works_again(session)


@pytest.mark.parametrize(
    "greed",
    [
        "head -c 3G /dev/zero | tail",
        "python3 -c 'bytearray(4 << 30)'",
        (
            "head -c 8G /dev/zero > /tmp/fill; head -c 8G /dev/zero > /dev/shm/fill; "
            "python3 -c 'bytearray(1800 << 20)'"
        ),
    ],
)
async def test_greed_for_memory_ends_the_command_alone(session: OpenSession, greed: str) -> None:
    before = session.daemon.rss_bytes()
    result = await session.bash(greed, timeout=40)
    assert result.exit_code == 137
    after = await session.bash("echo alive")
    assert (after.text, after.generation) == ("alive\n", 1)
    assert session.daemon.rss_bytes() - before < 10 * 1024 * 1024
