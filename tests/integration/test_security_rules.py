"""The rules of the security page that this stage must keep, each by its attack.

Everything here runs inside containers with limits. The names S1 to S21 are the
rules' numbers; what each asks for is said in its test.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_adapter.client import AdapterClient
from tests.integration.conftest import OpenSession, open_session
from tests.integration.daemon_process import DaemonProcess, containers_of, docker, wait_for

pytestmark = pytest.mark.docker
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
async def session(docker_session: OpenSession) -> OpenSession:
    return docker_session


@pytest.fixture
async def neighbour(docker_daemon: DaemonProcess) -> AsyncIterator[OpenSession]:
    async for opened in open_session(docker_daemon):
        yield opened


async def python(session: OpenSession, source: str, **arguments: object) -> str:
    """Runs a program inside and gives what it printed."""
    await session.tool("write", path="/tmp/attack.py", content=textwrap.dedent(source))
    return (await session.bash("python3 /tmp/attack.py 2>&1", **arguments)).text


def container_of(session: OpenSession) -> str:
    """The container of the only session whose workspace holds a mark of this test's own."""
    mark = f"mark-{time.monotonic_ns()}"
    for container in containers_of(session.daemon.state_dir):
        for mount in json.loads(docker("inspect", "-f", "{{json .Mounts}}", container)):
            if mount["Destination"] == session.workdir:
                known = Path(mount["Source"]) / ".container-of"
                if known.exists() and known.read_text().strip() == session.id:
                    return container
    raise AssertionError(f"no container of {session.id} found ({mark})")


@pytest.fixture
async def container(session: OpenSession) -> str:
    await session.tool("write", path=".container-of", content=session.id)
    return container_of(session)


async def still_works(session: OpenSession, generation: int = 1) -> None:
    result = await session.bash("echo alive")
    assert result.text == "alive\n"
    assert result.generation == generation


async def test_s1_every_signal_sent_to_process_1_changes_nothing(session: OpenSession) -> None:
    await session.bash("for s in $(seq 1 64); do kill -$s 1; done")
    await still_works(session)
    asked = await session.bash("kill -0 1 && echo there")
    assert asked.text == "there\n"


async def test_s1_children_cannot_steer_the_guest(session: OpenSession) -> None:
    printed = await python(
        session,
        """
        import ctypes, os, resource, socket
        libc = ctypes.CDLL(None, use_errno=True)
        tids = [int(t) for t in os.listdir("/proc/1/task")]
        def refused(name, attempt):
            try:
                attempt()
            except (PermissionError, OSError) as error:
                return
            print("NOT REFUSED", name)
        def raw(number, *arguments):
            if libc.syscall(number, *arguments) < 0:
                raise OSError(ctypes.get_errno(), "refused")
        for tid in tids:
            refused("prlimit", lambda: resource.prlimit(tid, resource.RLIMIT_NOFILE, (4, 4)))
            refused("sched", lambda: os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0)))
            refused("affinity", lambda: os.sched_setaffinity(tid, {0}))
            refused("priority", lambda: os.setpriority(os.PRIO_PROCESS, tid, 19))
            refused("ioprio", lambda: raw(251, 1, tid, 3 << 13))
        refused("priority of the user", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
        refused("io_uring", lambda: raw(425, 1, 0))
        for family in (socket.AF_PACKET, socket.AF_VSOCK, socket.AF_ALG, socket.AF_CAN):
            refused(f"socket {family}", lambda: socket.socket(family, socket.SOCK_RAW))
        for name in ("environ", "maps", "mem", "exe", "fd", "cwd", "root"):
            path = f"/proc/1/{name}"
            probe = os.listdir if name == "fd" else os.readlink
            if name in ("environ", "maps", "mem"):
                probe = lambda p: open(p, "rb").read(1)
            refused(path, lambda: probe(path))
        refused("ptrace", lambda: raw(101, 16, 1, 0, 0))
        refused("pidfd_getfd", lambda: raw(438, os.pidfd_open(1), 0, 0))
        # What a command may do to itself still works.
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        os.nice(1)
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        print("done")
        """,
    )
    assert printed.strip() == "done"
    await still_works(session)


async def test_s1_kill_minus_one_leaves_the_session_working(session: OpenSession) -> None:
    await session.bash("sleep 300.75 & echo")
    # Bash spares itself: it is another process that dies.
    result = await session.bash("kill -9 -1; echo survived")
    assert result.text == "survived\n"
    await still_works(session)
    assert (await session.bash("pgrep -f '[s]leep 300.75'; echo $?")).text == "1\n"


async def test_s3_a_session_with_a_hundred_idle_class_spinners_is_deleted(
    docker_daemon: DaemonProcess,
) -> None:
    async for session in open_session(docker_daemon):
        await session.tool("write", path=".container-of", content=session.id)
        container = container_of(session)
        await session.bash(
            "for i in $(seq 100); do (chrt -i 0 sh -c 'while :; do :; done' &) ; done; sleep 0.2"
        )
        begun = time.monotonic()
        await session.client.delete_session(session.id)
        assert time.monotonic() - begun < 15
        assert container not in containers_of(docker_daemon.state_dir)


async def test_s5_a_process_inside_cannot_take_the_guests_place(session: OpenSession) -> None:
    printed = await python(
        session,
        """
        import glob, json, socket, struct
        path, = glob.glob("/.sandboxd/session/*.sock")
        hello = json.dumps({"hello": {"protocol": 2, "version": "0.1.0", "secret": "0" * 64,
            "pid": 1, "mode": "container", "workdir": "/workspace", "home": "/", "shell": None,
            "search": None, "maps_closed": True}}).encode()
        for _ in range(20):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(0.2)
            try:
                s.connect(path)
                s.sendall(struct.pack("!II", len(hello), 0) + hello)
                got = s.recv(100)
            except (OSError, TimeoutError):
                got = b""
            if got:
                print("ANSWERED", got)
            s.close()
        print("done")
        """,
    )
    assert printed.strip() == "done"
    await still_works(session)


async def test_s6_a_timeout_ends_what_sheds_marker_session_and_ancestry(
    session: OpenSession,
) -> None:
    await session.bash("mkdir -p /tmp/h; printf x > /tmp/h/mark")
    await session.bash(
        "for i in 1 2 3; do env -i setsid sh -c "
        "'(env -i setsid sleep 300.5 >/dev/null 2>&1 &) ; exit 0' & done; sleep 60",
        timeout=1,
    )
    left = await session.bash("ps -eo args | grep -c '[s]leep 300.5'; exit 0")
    assert left.text.split()[0] == "0"


async def test_s6_zombies_do_not_fill_the_pids_limit(session: OpenSession) -> None:
    for _ in range(8):
        await session.bash("for i in $(seq 150); do (true &) ; done; exit 0")
    zombies = await session.bash("ps -eo stat | grep -c '^Z'; exit 0")
    assert int(zombies.text.split()[0]) < 20
    await still_works(session)


async def test_s8_a_connect_loop_in_one_session_does_not_slow_another(
    session: OpenSession, neighbour: OpenSession
) -> None:
    async def ten_calls_s() -> float:
        begun = time.monotonic()
        for _ in range(10):
            await neighbour.tool("glob", pattern="*")
        return time.monotonic() - begun

    await ten_calls_s()
    quiet = await ten_calls_s()
    await session.tool(
        "write",
        path="/tmp/loop.py",
        content=textwrap.dedent(
            """
            import glob, socket, time
            path, = glob.glob("/.sandboxd/session/*.sock")
            end = time.monotonic() + 6
            while time.monotonic() < end:
                s = socket.socket(socket.AF_UNIX); s.setblocking(False)
                try:
                    s.connect(path); s.send(b"garbage" * 50)
                except OSError:
                    time.sleep(0.001)
                s.close()
            """
        ),
    )
    await session.bash("python3 /tmp/loop.py > /dev/null 2>&1 & echo started")
    daemon_cpu_s = cpu_seconds(session.daemon)
    attacked = await ten_calls_s()
    time_used_s = cpu_seconds(session.daemon) - daemon_cpu_s
    # Ten calls of the daemon's own work, with a wide margin for a loaded machine.
    assert attacked < 10 * quiet + 1.0
    assert time_used_s < 1.0
    await still_works(session)


def cpu_seconds(daemon: DaemonProcess) -> float:
    assert daemon.process is not None
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_s10_deleting_a_hostile_tree_touches_nothing_outside(
    docker_daemon: DaemonProcess, tmp_path: Path
) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("kept")
    async for session in open_session(docker_daemon):
        await session.bash(
            f"ln -s {keep} out; ln -s {keep}/file f; "
            "python3 -c \"import os\nfor _ in range(800): os.mkdir('d'); os.chdir('d')\""
        )
    assert (keep / "file").read_text() == "kept"
    assert list((docker_daemon.state_dir / "s").iterdir()) == []


@pytest.fixture(scope="module")
def hostile_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that tries to configure and to subvert what runs in it."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "Dockerfile").write_text(
        textwrap.dedent(
            """
            FROM sandboxd/base:dev
            RUN echo 'echo INJECTED' > /evil.sh
            RUN printf '#include <unistd.h>\\n__attribute__((constructor)) \
            static void f(void) { if (getpid() == 1) _exit(99); }' > /p.c \
            && gcc -shared -fPIC -o /preload.so /p.c && echo /preload.so > /etc/ld.so.preload
            ENV LD_PRELOAD=/preload.so PYTHONPATH=/evil PYTHONSTARTUP=/evil.py \
                GLIBC_TUNABLES=glibc.malloc.check=3 BASH_ENV=/evil.sh
            USER root
            VOLUME /data
            WORKDIR /nowhere
            STOPSIGNAL SIGUSR1
            HEALTHCHECK --interval=1s CMD touch /data/health
            ENTRYPOINT ["/bin/false"]
            """
        )
    )
    docker("build", "-q", "--network", "host", "-t", "sandboxd-test/hostile", str(folder))
    yield "sandboxd-test/hostile"
    docker("image", "rm", "-f", "sandboxd-test/hostile")


@pytest.fixture(scope="module")
def hostile_daemon(
    hostile_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    config = f'[profiles.default]\nimage = "{hostile_image}"\n'
    daemon = DaemonProcess(
        "docker", tmp_path_factory.mktemp("hostile-daemon") / "state", config=config
    ).start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


async def test_s11_an_image_cannot_run_code_in_the_guest(hostile_daemon: DaemonProcess) -> None:
    async for session in open_session(hostile_daemon):
        result = await session.bash("echo fine")
        assert "INJECTED" not in result.text
        assert "fine" in result.text
        assert result.generation == 1


async def test_s12_the_image_configures_nothing(hostile_daemon: DaemonProcess) -> None:
    async for session in open_session(hostile_daemon):
        await session.tool("write", path=".container-of", content=session.id)
        inspected = json.loads(docker("inspect", container_of(session)))[0]
        config, host = inspected["Config"], inspected["HostConfig"]
        uid, gid = (int(part) for part in config["User"].split(":"))
        assert uid > 0
        assert gid > 0
        assert config["Healthcheck"]["Test"] == ["NONE"]
        assert "/bin/false" not in config["Entrypoint"]
        assert config["WorkingDir"] == session.workdir
        assert config["StopSignal"] == "SIGKILL"
        assert host["RestartPolicy"]["Name"] in ("", "no")
        assert {"Name": "core", "Soft": 0, "Hard": 0} in host["Ulimits"]
        volumes = [m for m in inspected["Mounts"] if m["Type"] == "volume"]
        assert volumes == []
        filled = await session.bash("head -c 300M /dev/zero > /data/f; stat -c %s /data/f")
        size = re.search(r"^\d+$", filled.text, re.M)
        assert size is None or int(size.group()) < 100 * 1024 * 1024


async def test_the_default_profile_is_hardened_as_seen_from_outside(
    session: OpenSession, container: str
) -> None:
    inspected = json.loads(docker("inspect", container))[0]
    config, host = inspected["Config"], inspected["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
    assert not any("unconfined" in option for option in host["SecurityOpt"])
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["Memory"] == host["MemorySwap"] == 2 * 1024**3
    assert host["PidsLimit"] == 512
    assert host["NanoCpus"] == 2_000_000_000
    assert host["IpcMode"] == "private"
    assert host["PidMode"] == ""
    assert not host["Devices"]
    assert int(config["User"].split(":")[0]) > 0
    writable = {m["Destination"] for m in inspected["Mounts"] if m["RW"]}
    assert writable == {session.workdir, session.session.effective.home_directory}


async def test_nothing_inside_can_reach_out(session: OpenSession, neighbour: OpenSession) -> None:
    await neighbour.tool("write", path="secret.txt", content="neighbour's own")
    printed = await python(
        session,
        """
        import glob, os, socket
        def refused(name, attempt):
            try:
                attempt()
            except OSError:
                return
            print("NOT REFUSED", name)
        for address in ("1.1.1.1", "172.17.0.1", "169.254.169.254"):
            refused(address, lambda: socket.create_connection((address, 80), timeout=1))
        interfaces = sorted(os.listdir("/sys/class/net"))
        if [i for i in interfaces if i not in ("lo", "sit0", "tunl0", "ip6tnl0")]:
            print("INTERFACES", interfaces)
        for folder in ("/.sandboxd", "/.sandboxd/toolbox", "/.sandboxd/session", "/", "/usr"):
            refused(f"write {folder}", lambda: open(f"{folder}/x", "w"))
        refused("guest", lambda: open("/.sandboxd/toolbox/guest.pyz", "r+b"))
        for root, _, files in os.walk("/.sandboxd/session"):
            for name in files:
                print("FILE", root, name)
        print("done")
        """,
    )
    lines = [line for line in printed.split("\n") if not line.startswith("FILE")]
    assert lines == ["done"] or lines == ["done", ""]
    found = await session.bash('grep -rsl "neighbour\'s own" / --exclude-dir=proc; exit 0')
    assert "secret.txt" not in found.text


async def test_s15_names_tell_nothing_of_the_session(session: OpenSession, container: str) -> None:
    inspected = json.loads(docker("inspect", container))[0]
    seen = json.dumps(
        [inspected["Name"], inspected["Config"]["Hostname"], inspected["Config"]["Labels"]]
    )
    mounts = (await session.bash("cat /proc/self/mountinfo; hostname")).text
    for text in (seen, mounts):
        assert session.id not in text
        assert "default" not in text.replace("defaults", "")


async def test_s17_special_and_leased_files_hang_nothing(session: OpenSession) -> None:
    await session.bash("mkfifo fifo; echo leased > leased; echo x > ok")
    await session.tool(
        "write",
        path="/tmp/lease.py",
        content=(
            "import fcntl, os, signal, time\n"
            "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            "fd = os.open('leased', os.O_RDONLY)\n"
            "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "open('/tmp/held', 'w').close()\n"
            "time.sleep(20)\n"
        ),
    )
    await session.bash(
        "python3 /tmp/lease.py >/dev/null 2>&1 & "
        "for i in $(seq 100); do [ -e /tmp/held ] && break; sleep 0.05; done; echo"
    )
    for tool, arguments in [
        ("read", {"path": "fifo"}),
        ("write", {"path": "fifo", "content": "x"}),
        ("edit", {"path": "fifo", "oldText": "a", "newText": "b"}),
        ("grep", {"pattern": "x", "path": "fifo"}),
        ("read", {"path": "/dev/zero"}),
        ("read", {"path": "/dev/tty"}),
    ]:
        begun = time.monotonic()
        result = await session.tool(tool, **arguments)
        assert result.is_error, (tool, arguments)
        assert time.monotonic() - begun < 5
    begun = time.monotonic()
    await session.tool("read", path="leased")
    assert time.monotonic() - begun < 15
    await still_works(session)


async def test_s18_the_secret_is_gone_once_the_guest_has_said_hello(
    session: OpenSession, container: str
) -> None:
    inside = await session.bash(
        "find /.sandboxd/session -type f; cat /proc/1/cmdline | tr '\\0' ' '; env"
    )
    assert not re.search(r"^/.sandboxd/session/", inside.text, re.M)
    assert not re.search(r"[0-9a-f]{32,}|[A-Za-z0-9_-]{43,}", inside.text.split("PATH=")[0])
    environment = docker("inspect", "-f", "{{json .Config.Env}}", container)
    assert "secret" not in environment.lower()


async def test_s16_a_second_daemon_on_one_state_folder_is_refused(
    docker_daemon: DaemonProcess,
) -> None:
    second = DaemonProcess("docker", docker_daemon.state_dir)
    with pytest.raises(AssertionError, match=r"ended with 6"):
        second.start()
    async with AdapterClient(docker_daemon.address) as client:
        assert (await client.get_info()).name == "sandboxd"


async def test_s16_a_session_cannot_lock_the_state_folder(session: OpenSession) -> None:
    names = await session.bash("cut -d' ' -f4,5 /proc/self/mountinfo")
    assert "sandboxd.lock" not in names.text
    assert "sandboxd.db" not in names.text


def test_s21_the_documentation_says_what_is_not_isolated() -> None:
    text = re.sub(r"\s+", " ", (REPOSITORY / "README.md").read_text().lower())
    for said in (
        "calls of one session are not isolated from each other",
        "can imitate",
        "only typed fields",
        "follows no links",
        ".git",
    ):
        assert said in text, said


async def test_a_fork_bomb_leaves_the_session_working(session: OpenSession) -> None:
    await session.bash(":(){ :|:& };:; sleep 2", timeout=4)
    await works_again(session)


async def works_again(session: OpenSession) -> None:
    """The same container answers; what the bomb left may take the first tries."""
    end = time.monotonic() + 30
    while True:
        result = await session.bash("echo alive")
        if "alive" in result.text and result.exit_code == 0:
            assert result.generation == 1
            return
        assert time.monotonic() < end, result


async def test_endless_output_and_greedy_memory_leave_the_daemon_flat(
    session: OpenSession,
) -> None:
    await session.bash("true")
    before = session.daemon.rss_bytes()
    endless = await session.bash("yes", timeout=3)
    assert endless.exit_code == 124
    assert endless.bytes_total > 100_000_000
    big = await session.bash("head -c 1G /dev/zero")
    assert big.text == "[Binary output, 1073741824 bytes]"
    assert session.daemon.rss_bytes() - before < 10 * 1024 * 1024
    await still_works(session)


def test_no_container_of_an_ended_session_is_left(docker_daemon: DaemonProcess) -> None:
    wait_for(
        lambda: not containers_of(docker_daemon.state_dir), 15, "the last session's container gone"
    )
