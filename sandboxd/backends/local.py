"""The `local` backend: the same guest as an ordinary process. It isolates nothing.

For development, and for hosts without an engine. The guest is started in a
session of its own and outlives the daemon, as a container would; the next daemon
knows it by pid and start time, and takes it up again. Files are confined to the
session's folder by the guest's file ops; commands are confined in nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pwd
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandboxd.backends.base import SandboxFacts, SandboxSpec
from sandboxd.backends.folders import SessionFolder, SessionFolders
from sandboxd.backends.guest_zipapp import ensure_zipapp
from sandboxd.backends.hello import Expected, Hello, digest_of, new_secret
from sandboxd.backends.listener import SOCKET_NAME, Listener
from sandboxd.backends.local_processes import MARKER, end_processes
from sandboxd.backends.phases import Phases
from sandboxd.backends.pidfd import WatchedProcess, start_time_of
from sandboxd.backends.sandbox import GuestSandbox, ProcessEnded
from sandboxd.config import Settings
from sandboxd.errors import EXIT_STATE, CreateFailed, SandboxdError, StartupError
from sandboxd.log import EventLog

KILL_S: Final = 10.0
"""Time to end everything of a sandbox; the sweeper repeats it."""
ADOPT_S: Final = 10.0
SOCKET_PATH_BYTES_MAX: Final = 107
LOG_TAIL_CHARS_MAX: Final = 4_000
_LOG_NAME: Final = "guest.log"
_PASSED_ON: Final = ("PATH", "LANG", "TZ", "http_proxy", "https_proxy", "no_proxy")
"""What commands inherit of the daemon's environment, whose secrets are not theirs."""

_log = EventLog("backends")


class LocalBackend:
    """See `backends/base.py`, `Backend`."""

    name = "local"
    isolated = False
    tells_oom = False

    def __init__(self, settings: Settings, boot_id: str) -> None:
        self._boot_id = boot_id
        self._settings = settings
        self._folders = SessionFolders(settings.state_dir)
        self._sandboxes: dict[str, GuestSandbox] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self._zipapp = Path()

    async def start(self) -> None:
        state_dir = self._settings.state_dir
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folders.make_root()
            self._zipapp = await asyncio.to_thread(ensure_zipapp, state_dir)
        except OSError as error:
            raise StartupError(f"cannot use `{state_dir}`: {error.strerror}", EXIT_STATE) from None

    async def stop(self) -> None:
        await asyncio.gather(*self._undoing, return_exceptions=True)
        sandboxes = list(self._sandboxes.values())
        self._sandboxes.clear()
        for sandbox in sandboxes:
            await sandbox.close("SHUTDOWN", "the daemon shuts down")
        await self._folders.stop()

    async def create(self, spec: SandboxSpec, on_phase: Callable[[str], None]) -> GuestSandbox:
        try:
            return await self._create(spec, Phases(on_phase))
        except BaseException:
            # Also when cancelled: what exists of this attempt has no other owner.
            undo = asyncio.create_task(self._undo(spec))
            self._undoing.add(undo)
            undo.add_done_callback(self._undoing.discard)
            await asyncio.shield(undo)
            raise

    async def adopt(
        self, spec: SandboxSpec, facts: SandboxFacts, secret_digest: str
    ) -> GuestSandbox | None:
        folder = self._folders.of(spec.resource_id)
        pid = _running_guest(folder)
        if pid is None:
            return None
        with contextlib.ExitStack() as started:
            try:
                process = WatchedProcess(pid)
                started.callback(process.close)
                # Held first, then looked up again: only now is it surely this one.
                if _running_guest(folder) != pid:
                    return None
                listener = Listener(folder.run, os.geteuid(), os.getegid(), self._boot_id)
                started.callback(listener.close)
                box = self._box(spec, facts, secret_digest, listener, process)
                started.pop_all()
                hello = await box.connect(ADOPT_S)
            except ProcessEnded:
                return None
            except OSError as error:  # a timeout is one
                _log.warning("a guest is not back", resource=spec.resource_id, why=repr(error))
                return None
        folder.remove_secret()
        return self._keep(box, hello, facts)

    async def release(self, resource_id: str) -> None:
        folder = self._folders.of(resource_id)
        await self._end(resource_id, folder)
        folder.remove_secret()

    async def remove(self, resource_id: str) -> None:
        folder = self._folders.of(resource_id)
        await self._end(resource_id, folder)
        await self._folders.remove(resource_id)

    async def owned(self) -> set[str]:
        return await asyncio.to_thread(self._folders.names)

    def state_folder_of(self, resource_id: str) -> Path:
        return self._folders.of(resource_id).path

    # --- creating -------------------------------------------------------------

    async def _create(self, spec: SandboxSpec, phases: Phases) -> GuestSandbox:
        folder = self._folders.of(spec.resource_id)
        uid, gid = os.geteuid(), os.getegid()
        secret = new_secret()
        with contextlib.ExitStack() as started:
            try:
                with phases.phase("create"):
                    folder.make(uid, gid, with_tmp=True)
                    folder.write_secret(secret, uid, gid)
                    listener = Listener(folder.run, uid, gid, self._boot_id)
                    started.callback(listener.close)
                with phases.phase("start"):
                    pid = await asyncio.to_thread(self._spawn, spec, folder)
                    process = WatchedProcess(pid, child=True)
                    started.callback(process.close)
            except OSError as error:
                raise CreateFailed(
                    "START_FAILED", "the worker cannot start the sandbox's process", str(error)
                ) from None
            facts = self._facts(folder)
            box = self._box(spec, facts, digest_of(secret), listener, process)
            started.pop_all()
        with phases.phase("guest_ready"):
            hello = await self._first_hello(box, folder)
        folder.remove_secret()
        return self._keep(box, hello, dataclasses.replace(facts, phases_s=phases.seconds))

    def _spawn(self, spec: SandboxSpec, folder: SessionFolder) -> int:
        """Starts the guest and notes which process it is. Blocks. Raises OSError.

        Spawned, not forked: the daemon's other threads hold locks that a fork
        would copy.
        """
        argv = self._argv(spec, folder)
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env[MARKER] = spec.resource_id
        out = os.open(
            folder.path / _LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_DUP2, out, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(out)
        # Not yet reaped, so the number is still this process's, dead or alive.
        record = {"pid": pid, "start_time": start_time_of(pid)}
        folder.process.write_text(json.dumps(record), encoding="ascii")
        return pid

    def _argv(self, spec: SandboxSpec, folder: SessionFolder) -> list[str]:
        rg = _find_rg()
        return [
            *[sys.executable, "-I", "-S", "-B", "-X", "utf8", str(self._zipapp)],
            *["--mode", "local"],
            *["--socket", _dialled(folder)],
            *["--secret-file", str(folder.secret)],
            *["--workdir", str(folder.workspace)],
            *["--home", str(folder.home)],
            *["--root", str(folder.store)],
            *["--user", _user_name()],
            *["--rg-argv", json.dumps([rg] if rg else [])],
            *["--search", spec.profile.search],
        ]

    def _box(
        self,
        spec: SandboxSpec,
        facts: SandboxFacts,
        secret_digest: str,
        listener: Listener,
        process: WatchedProcess,
    ) -> GuestSandbox:
        expected = Expected(
            secret_digest,
            process.pid,
            "local",
            facts.working_directory,
            facts.home_directory,
        )
        return GuestSandbox(spec.resource_id, spec.generation, facts, expected, listener, process)

    async def _first_hello(self, box: GuestSandbox, folder: SessionFolder) -> Hello:
        timeout_s = self._settings.guest_ready_timeout_s
        try:
            return await box.connect(timeout_s)
        except ProcessEnded:
            why = "ended before it was ready"
        except TimeoutError:
            why = f"was not ready within {timeout_s:g} s"
        log_tail = _tail(folder.path / _LOG_NAME)
        raise CreateFailed(
            "GUEST_NOT_READY", f"the sandbox's guest {why}", f"{why}; log: {log_tail!r}"
        )

    def _keep(self, box: GuestSandbox, hello: Hello, facts: SandboxFacts) -> GuestSandbox:
        box.facts = dataclasses.replace(facts, shell=hello.shell, search_engine=hello.search)
        self._sandboxes[box.resource_id] = box
        return box

    @staticmethod
    def _facts(folder: SessionFolder) -> SandboxFacts:
        """No limit is kept here, so none is claimed: zeros."""
        return SandboxFacts(
            image="",
            image_digest="",
            runtime="process",
            uid=os.geteuid(),
            gid=os.getegid(),
            memory_bytes=0,
            cpu_millis=0,
            pids=0,
            disk_bytes=0,
            tmp_bytes=0,
            network="open",
            quota_mechanism="none",
            working_directory=str(folder.workspace),
            home_directory=str(folder.home),
            shell="",
            search_engine="",
        )

    async def _undo(self, spec: SandboxSpec) -> None:
        try:
            if spec.generation > 1:
                await self.release(spec.resource_id)
            else:
                await self.remove(spec.resource_id)
        except SandboxdError as error:
            _log.warning(
                "a failed start is not fully undone",
                resource=spec.resource_id,
                why=error.operator_text,
            )

    # --- ending ---------------------------------------------------------------

    async def _end(self, resource_id: str, folder: SessionFolder) -> None:
        sandbox = self._sandboxes.pop(resource_id, None)
        pid = _running_guest(folder)
        if sandbox is not None:
            await sandbox.close("DELETED", "the sandbox is ended")
        if not await asyncio.to_thread(end_processes, resource_id, pid, KILL_S):
            raise SandboxdError(
                "a sandbox's processes could not be ended",
                f"processes of {resource_id} are still there after {KILL_S:g} s",
            )
        if pid is not None:
            _reap(pid)
        folder.process.unlink(missing_ok=True)


def _running_guest(folder: SessionFolder) -> int | None:
    """Pid of the folder's guest, where the noted process is still that one."""
    try:
        record = json.loads(folder.process.read_text(encoding="ascii"))
        pid, start_time = int(record["pid"]), int(record["start_time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if start_time_of(pid) == start_time else None


def _reap(pid: int) -> None:
    """Takes a dead guest off the process table; an earlier daemon's has another parent."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _dialled(folder: SessionFolder) -> str:
    """The socket's path as the guest dials it, from its working directory.

    A path over the kernel's limit is given relative to it: both lie in one folder.
    """
    path = folder.run / SOCKET_NAME
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return str(path)
    return os.path.relpath(path, folder.workspace)


def _find_rg() -> str | None:
    """The environment's own ripgrep before the host's."""
    beside = Path(sys.executable).parent / "rg"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("rg")


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _tail(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL_CHARS_MAX:].strip()
    except OSError:
        return ""
