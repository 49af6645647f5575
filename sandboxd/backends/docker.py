"""The `docker` backend: one hardened container for each sandbox.

The engine makes and ends containers; everything else goes over the guest's
socket. Whatever happens, the order of an ending is: kill all of the container's
cgroup, let the engine remove it, see the cgroup gone, then remove the store
(security S3, S10).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from sandboxd import fault_points
from sandboxd.backends import docker_failures, identity
from sandboxd.backends.base import SandboxFacts, SandboxSpec
from sandboxd.backends.cgroup_counters import can_tell
from sandboxd.backends.cgroups import ContainerCgroup, belongs, cgroup_mounts, cgroup_of
from sandboxd.backends.docker_ending import end_containers, oom_killed
from sandboxd.backends.docker_spec import (
    HOME,
    LABEL_GENERATION,
    LABEL_RESOURCE,
    LABEL_WORKER,
    USER_NAME,
    WORKSPACE,
    ImageFacts,
    Placement,
    container_config,
    container_name,
    granted_facts,
    group_text,
    image_facts,
    owner_labels,
    passwd_text,
)
from sandboxd.backends.engine import (
    API_VERSION_MIN,
    Engine,
    EngineMetrics,
    EngineNotFound,
    EngineRefused,
)
from sandboxd.backends.folders import SessionFolders
from sandboxd.backends.hello import Expected, digest_of, new_secret
from sandboxd.backends.image_user import ImageUser, ImageUsers
from sandboxd.backends.leftovers import Leftovers, remove_half_made
from sandboxd.backends.listener import Listener
from sandboxd.backends.phases import Phases
from sandboxd.backends.pidfd import WatchedProcess
from sandboxd.backends.sandbox import GuestSandbox, ProcessEnded
from sandboxd.backends.toolbox import Toolbox, ensure_toolbox
from sandboxd.config import Settings
from sandboxd.errors import (
    EXIT_ENGINE,
    EXIT_IMAGE,
    EXIT_STATE,
    CreateFailed,
    EngineDown,
    SandboxdError,
    StartupError,
)
from sandboxd.log import EventLog

ADOPT_S: Final = 10.0
"""Time for a guest to dial a new daemon; it tries at least every two seconds."""

_OWN_KERNEL: Final = re.compile(r"runsc|gvisor|kata", re.IGNORECASE)
"""Runtimes whose processes have no pid on the host: there the secret alone proves."""

_log = EventLog("backends")


class DockerBackend:
    """See `backends/base.py`, `Backend`."""

    name = "docker"
    isolated = True
    tells_oom = False
    """Until `start` has looked. False where any profile has a kernel of its own."""

    def __init__(self, settings: Settings, metrics: EngineMetrics, boot_id: str) -> None:
        self._boot_id = boot_id
        self._settings = settings
        self._engine = Engine(
            metrics, short_s=settings.engine_timeout_s, pull_s=settings.pull_timeout_s
        )
        self._image_users = ImageUsers(self._engine)
        self._folders = SessionFolders(settings.state_dir)
        self._sandboxes: dict[str, GuestSandbox] = {}
        self._cgroups: dict[str, ContainerCgroup] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self._worker = ""
        self._uid = -1
        self._cpus = 1
        self._toolbox: Toolbox | None = None
        self._leftovers: Leftovers | None = None

    async def start(self) -> None:
        try:
            version = await self._engine.api_version()
            if version < API_VERSION_MIN:
                wanted = ".".join(map(str, API_VERSION_MIN))
                spoken = ".".join(map(str, version))
                raise StartupError(
                    f"the container engine speaks API {spoken}; {wanted} is needed", EXIT_ENGINE
                )
            self._cpus = await self._engine.cpus()
            self.tells_oom = await asyncio.to_thread(can_tell, cgroup_mounts()) and not any(
                _OWN_KERNEL.search(profile.runtime) for profile in self._settings.profiles.values()
            )
            self._take_state_folder()
            self._leftovers = Leftovers(self._engine, self._folders, self._worker)
            labels = {LABEL_WORKER: self._worker, LABEL_RESOURCE: "toolbox"}
            self._toolbox = await ensure_toolbox(
                self._engine, self._settings.toolbox_image, self._settings.state_dir, labels
            )
            await self._check_images()
        except (EngineDown, EngineRefused) as error:
            raise StartupError(f"{error}: {error.operator_text}", EXIT_ENGINE) from None

    async def stop(self) -> None:
        await asyncio.gather(*self._undoing, return_exceptions=True)
        for pull in self._pulls.values():
            pull.cancel()
        sandboxes = list(self._sandboxes.values())
        self._sandboxes.clear()
        for sandbox in sandboxes:
            await sandbox.close("SHUTDOWN", "the daemon shuts down")
        await self._folders.stop()
        self._engine.close()

    async def create(self, spec: SandboxSpec, on_phase: Callable[[str], None]) -> GuestSandbox:
        try:
            return await self._create(spec, Phases(on_phase))
        except BaseException as error:
            # Also when cancelled: what exists of this attempt has no other owner.
            undo = asyncio.create_task(self._undo(spec))
            self._undoing.add(undo)
            undo.add_done_callback(self._undoing.discard)
            await asyncio.shield(undo)
            if isinstance(error, EngineRefused):
                raise docker_failures.start_failed(spec.profile, error) from None
            raise

    async def adopt(
        self, spec: SandboxSpec, facts: SandboxFacts, secret_digest: str
    ) -> GuestSandbox | None:
        try:
            return await self._adopt(spec, facts, secret_digest)
        except EngineRefused as error:
            # It says nothing of the container, which may be well: to be asked again.
            raise EngineDown(error.operator_text) from None

    async def _adopt(
        self, spec: SandboxSpec, facts: SandboxFacts, secret_digest: str
    ) -> GuestSandbox | None:
        folder = self._folders.of(spec.resource_id)
        found = await self._engine.containers(owner_labels(self._worker, spec.resource_id))
        if len(found) != 1 or not found[0].running or not folder.is_there():
            return None
        (container,) = found
        if container.labels.get(LABEL_GENERATION) != str(spec.generation):
            return None
        with contextlib.ExitStack() as started:
            listener = Listener(folder.run, facts.uid, facts.gid, self._boot_id)
            started.callback(listener.close)
            try:
                box = await self._take(spec, facts, secret_digest, listener, container.id)
                started.pop_all()
                hello = await box.connect(ADOPT_S)
                await box.see_limits(self._cgroups.get(spec.resource_id), hello.spawning)
            except (ProcessEnded, EngineNotFound):
                return None
            except OSError as error:  # a timeout is one
                _log.warning("a guest is not back", resource=spec.resource_id, why=repr(error))
                return None
        # A daemon that died between start and hello left it.
        folder.remove_secret()
        box.facts = dataclasses.replace(facts, shell=hello.shell, search_engine=hello.search)
        self._sandboxes[spec.resource_id] = box
        return box

    async def release(self, resource_id: str) -> None:
        folder = self._folders.of(resource_id)
        await self._end(resource_id)
        folder.remove_secret()

    async def remove(self, resource_id: str) -> None:
        await self._end(resource_id)
        assert self._leftovers is not None
        await self._leftovers.remove_labelled(resource_id)
        # A label may say anything.
        if self._folders.could_be(resource_id):
            await self._folders.remove(resource_id)

    async def owned(self) -> set[str]:
        assert self._leftovers is not None
        return await self._leftovers.resources()

    def state_folder_of(self, resource_id: str) -> Path:
        return self._folders.of(resource_id).path

    # --- starting -------------------------------------------------------------

    def _take_state_folder(self) -> None:
        state_dir = self._settings.state_dir
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._worker = identity.worker_id(state_dir)
            self._uid = identity.sandbox_uid(state_dir)
            self._folders.make_root()
            remove_half_made(state_dir)
        except OSError as error:
            raise StartupError(f"cannot use `{state_dir}`: {error.strerror}", EXIT_STATE) from None

    async def _check_images(self) -> None:
        """Images that no registry has must be there; the others are pulled at need."""
        for image in sorted({profile.image for profile in self._settings.profiles.values()}):
            if docker_failures.may_be_pulled(image):
                continue
            try:
                await self._engine.image(image)
            except EngineNotFound:
                raise StartupError(
                    f"the image `{image}` is missing; `make images` builds the project's own",
                    EXIT_IMAGE,
                ) from None

    # --- creating -------------------------------------------------------------

    async def _create(self, spec: SandboxSpec, phases: Phases) -> GuestSandbox:
        with phases.phase("pull"):
            image = await self._image(spec.profile.image)
            account = None
            if spec.profile.user == "image":
                labels = {LABEL_WORKER: self._worker, LABEL_RESOURCE: spec.resource_id}
                account = await self._image_users.of(image, labels)
        uid, gid = identity.user_of(
            spec.profile.user, account, self._uid, allow_root=spec.profile.allow_root
        )
        facts = granted_facts(spec, image, uid, gid, min(spec.profile.cpus, self._cpus))
        secret = new_secret()
        with contextlib.ExitStack() as started:
            try:
                with phases.phase("create"):
                    place = self._prepare(spec, uid, gid, secret, account)
                    listener = Listener(place.folder.run, uid, gid, self._boot_id)
                    started.callback(listener.close)
                    await fault_points.reach("create.prepared")
                    container = await self._engine.create(
                        container_name(spec.resource_id), container_config(spec, image, place)
                    )
                with phases.phase("start"):
                    await self._engine.start(container)
            except OSError as error:
                raise CreateFailed(
                    "START_FAILED", "the worker cannot make the sandbox's folder", str(error)
                ) from None
            except EngineNotFound:
                raise docker_failures.image_missing(image.name) from None
            except EngineRefused as error:
                raise docker_failures.start_failed(spec.profile, error) from None
            with phases.phase("guest_ready"):
                try:
                    box = await self._take(spec, facts, digest_of(secret), listener, container)
                    started.pop_all()
                    hello = await box.connect(self._settings.guest_ready_timeout_s)
                    await box.see_limits(self._cgroups.get(spec.resource_id), hello.spawning)
                except (TimeoutError, ProcessEnded) as error:
                    raise await self._not_ready(container, error) from None
        place.folder.remove_secret()
        box.facts = dataclasses.replace(
            facts, shell=hello.shell, search_engine=hello.search, phases_s=phases.seconds
        )
        self._sandboxes[spec.resource_id] = box
        return box

    def _prepare(
        self, spec: SandboxSpec, uid: int, gid: int, secret: str, account: ImageUser | None
    ) -> Placement:
        """Makes what the container will mount. Raises OSError."""
        folder = self._folders.of(spec.resource_id)
        own_accounts = spec.profile.user != "image"
        assert self._toolbox is not None
        folder.make(uid, gid)
        folder.write_secret(secret, uid, gid)
        if own_accounts:
            accounts = {folder.passwd: passwd_text(uid, gid), folder.group: group_text(gid)}
            for path, text in accounts.items():
                path.write_text(text, encoding="ascii")
                path.chmod(0o644)
        return Placement(
            worker=self._worker,
            folder=folder,
            toolbox=self._toolbox.path,
            guest_argv=self._toolbox.guest_argv,
            rg_argv=self._toolbox.rg_argv,
            uid=uid,
            gid=gid,
            cpus=min(spec.profile.cpus, self._cpus),
            own_accounts=own_accounts,
            user_name=(account.name if account else "") or USER_NAME,
        )

    async def _take(
        self,
        spec: SandboxSpec,
        facts: SandboxFacts,
        secret_digest: str,
        listener: Listener,
        container: str,
    ) -> GuestSandbox:
        """A sandbox of a started container, not yet connected. Raises `ProcessEnded`."""
        state = (await self._engine.container(container))["State"]
        pid = int(state.get("Pid") or 0)
        if not state.get("Running") or pid <= 0:
            raise ProcessEnded
        process = None
        with contextlib.suppress(ProcessLookupError):
            process = WatchedProcess(pid)
        # Held first, then checked: only now does the number name one process for sure.
        if process is not None and not belongs(pid, container):
            process.close()
            process = None
        if process is None:
            # Ended meanwhile, or the daemon has a PID namespace of its own.
            if not (await self._engine.container(container))["State"].get("Running"):
                raise ProcessEnded
        else:
            self._cgroups[spec.resource_id] = await asyncio.to_thread(cgroup_of, container, pid)
        by_pid = process is not None and not _OWN_KERNEL.search(spec.profile.runtime)
        expected = Expected(secret_digest, pid if by_pid else None, "container", WORKSPACE, HOME)
        return GuestSandbox(spec.resource_id, spec.generation, facts, expected, listener, process)

    async def _not_ready(self, container: str, error: Exception) -> CreateFailed:
        why = "ended before it was ready"
        if isinstance(error, TimeoutError):
            why = f"was not ready within {self._settings.guest_ready_timeout_s:g} s"
        state = (await self._engine.container(container))["State"]
        exit_code = None if state.get("Running") else int(state.get("ExitCode", -1))
        log_tail = await self._engine.log_tail(container)
        return docker_failures.guest_not_ready(why, exit_code, log_tail)

    async def _image(self, name: str) -> ImageFacts:
        try:
            return image_facts(name, await self._engine.image(name))
        except EngineNotFound:
            if not docker_failures.may_be_pulled(name):
                raise docker_failures.image_missing(name) from None
        # One pull for all who wait for the same image; it outlives any one of them.
        pull = self._pulls.get(name)
        if pull is None:
            pull = self._pulls[name] = asyncio.create_task(self._engine.pull(name))
            pull.add_done_callback(lambda _: self._pulls.pop(name, None))
        try:
            await asyncio.shield(pull)
            return image_facts(name, await self._engine.image(name))
        except (EngineRefused, EngineDown) as error:
            raise docker_failures.pull_failed(name, error) from None

    async def _undo(self, spec: SandboxSpec) -> None:
        """Best effort: where the engine does not answer the sweeper comes back to it."""
        try:
            if spec.generation > 1:
                await self.release(spec.resource_id)
            else:
                await self.remove(spec.resource_id)
        except EngineDown:
            # The log has it once; one line for each client that tries would bury it.
            _log.debug("a start is not undone before the engine is back", resource=spec.resource_id)
        except SandboxdError as error:
            _log.warning(
                "a failed start is not fully undone",
                resource=spec.resource_id,
                why=error.operator_text,
            )

    async def _end(self, resource_id: str) -> None:
        """Ends everything of a sandbox but its store. Raises `EngineDown`, `SandboxdError`."""
        sandbox = self._sandboxes.pop(resource_id, None)
        known = self._cgroups.get(resource_id)
        if sandbox is not None:
            if sandbox.host is not None and known is not None:
                # While the container is still there to be asked about.
                await sandbox.host.settle(partial(oom_killed, self._engine, known.container_id))
            await sandbox.close("DELETED", "the sandbox is ended")
        labels = owner_labels(self._worker, resource_id)
        await end_containers(self._engine, labels, known)
        self._cgroups.pop(resource_id, None)
