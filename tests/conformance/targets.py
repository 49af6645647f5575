"""What the kit is run against: a profile of a daemon for each kind of sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox_adapter.conformance.catalogue import all_rules
from sandboxd.config import GVISOR_PIDS_MIN
from tests.conformance.kit import KitRun, Unjudged, run_kit
from tests.images.recipes import image
from tests.integration import gvisor
from tests.integration.daemon_process import DaemonProcess


@dataclass(frozen=True)
class Kind:
    """One kind of sandbox. `settings` are those of its profile, in TOML."""

    name: str
    about: str
    backend: str = "docker"
    settings: str = ""
    test_image: str = ""
    """Name of an image of `tests/images`. Empty: the default image."""
    gvisor: bool = False
    state: str = "state"
    """Name of the daemon's state folder. Working directories of `local` are below it."""
    unjudged: tuple[Unjudged, ...] = ()
    """What the kit may leave unjudged on this kind."""
    areas: tuple[str, ...] = ()
    """Areas of rules that can come out otherwise on this kind than on the default one. Empty:
    all. The tests judge these alone, to be done in time; `make conformance` judges everything."""

    def config(self) -> str:
        """A daemon's settings. Builds the image where it has to; skips where it cannot be."""
        lines = [f'default_profile = "{self.name}"', f"[profiles.{self.name}]", self.settings]
        if self.test_image:
            lines.append(f'image = "{image(self.test_image)}"')
        if self.gvisor:
            # Its own threads count against the limit as well.
            lines.append(f'runtime = "{gvisor.require()}"\npids = {GVISOR_PIDS_MIN}')
        return "\n".join(lines) + "\n"

    def judge(self, folder: Path, config: str, areas: tuple[str, ...] = ()) -> KitRun:
        """The kit's run against a daemon of its own, which keeps its state in the folder."""
        selected = [word for area in areas for word in ("--select", f"{area}.*")]
        daemon = DaemonProcess(self.backend, folder / self.state, config=config).start()
        try:
            return run_kit(daemon.address, folder, *selected)
        finally:
            daemon.end_for_good()


_SEARCHED: Final = ("grep", "glob", "calls")
_INSIDE: Final = tuple(
    sorted({rule.area for rule in all_rules()} - {"adapter", "inputs", "sessions", "ledger"})
)
"""What is not decided before a sandbox is asked."""

_ROOT: Final = 'user = "0:0"\nallow_root = true'
_GREP: Final = 'search = "grep"'

_ONE: Final = (
    Unjudged("the adapter claims all that could be asked for", 1),
    Unjudged("/etc/hosts is no mount of its own", 1),
    Unjudged("the sandbox has a shell", 1),
    Unjudged("the working directory cannot be removed", 1),
    Unjudged("the sandbox shows no zombie of a parent that does not wait", 1),
)
"""Rules about one special thing each, which sandboxes of this daemon may not have or show."""
_NOT_ROOT: Final = (*_ONE, Unjudged("the tools do not run as root", 1))
_PERMISSIONS: Final = Unjudged("the tools run as root, whom permission bits do not stop", 26)
_CHOWN: Final = Unjudged("a fixture could not be made: .*chown: .*Operation not permitted.*", 1)
_COMMANDS: Final = Unjudged("the sandbox has no command `[a-z0-9]+`", 8)
_FEW: Final = (
    *_NOT_ROOT,
    _COMMANDS,
    Unjudged("the sandbox has no (bash|`yes`)", 2),
    Unjudged("the sandbox has no python3 and no perl to make a socket with", 5),
    Unjudged("the sandbox has nothing that makes a socket", 1),
    Unjudged("the shell has no `disown`", 1),
)
"""An image of few commands: BusyBox has most of what rules need, no interpreter."""

KINDS: Final = (
    Kind("default", "the default image, not root", unjudged=_NOT_ROOT),
    Kind(
        "root",
        "the default image, as root",
        settings=_ROOT,
        unjudged=(*_ONE, _PERMISSIONS, _CHOWN),
        areas=_INSIDE,
    ),
    Kind(
        "busybox",
        "a static BusyBox and nothing else",
        test_image="busybox",
        unjudged=_FEW,
        areas=_INSIDE,
    ),
    Kind(
        "musl",
        "a shell linked against musl",
        test_image="musl",
        unjudged=(
            Unjudged("the sandbox has no command `[a-z0-9]+`", 90),
            Unjudged("a fixture could not be made: .*exited with code 127.*", 10),
            *(each for each in _FEW if each is not _COMMANDS),
        ),
        areas=_INSIDE,
    ),
    Kind(
        "shellless",
        "one static program, no shell",
        test_image="shellless",
        unjudged=(*_NOT_ROOT, Unjudged("the sandbox has no shell", 330)),
        areas=_INSIDE,
    ),
    Kind(
        "gvisor",
        "the default image under gVisor",
        gvisor=True,
        unjudged=(
            *_NOT_ROOT,
            # A command out of memory ends the whole of its kernel.
            Unjudged("the adapter does not claim OOM_CAUSE", 4),
            Unjudged("`resources.pids` is 8192: nothing would stop the attack", 2),
            # Attributes and access lists of files.
            Unjudged("a fixture could not be made: .*OSError: .*Operation not supported.*", 2),
            Unjudged("there is no /proc/self/(fd|status) to look at", 2),
            Unjudged("the sandbox's kernel gives a process no controlling terminal", 1),
            Unjudged("the sandbox's terminals know no end-of-file character", 1),
        ),
        areas=_INSIDE,
    ),
    Kind(
        "grep",
        "the default image, searched by GNU grep",
        settings=_GREP,
        unjudged=_NOT_ROOT,
        areas=_SEARCHED,
    ),
    Kind(
        "busybox-grep",
        "BusyBox, searched by its grep",
        settings=_GREP,
        test_image="busybox",
        unjudged=_FEW,
        areas=_SEARCHED,
    ),
    Kind(
        "local",
        "no container at all, in a folder whose name a shell must quote",
        backend="local",
        state="it's a state",
        unjudged=(
            *_NOT_ROOT,
            Unjudged("the adapter does not claim ISOLATED(, OOM_CAUSE)?", 36),
            Unjudged("the adapter refuses paths outside the session's folder", 8),
            # Of the user who runs the tests.
            _PERMISSIONS,
            _COMMANDS,
        ),
    ),
)


def unjudged_of(name: str) -> tuple[Unjudged, ...]:
    """What the kit may leave unjudged on the kind of this name."""
    return next(kind.unjudged for kind in KINDS if kind.name == name)
