"""What the kit is run against: a profile of a daemon for each kind of sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxd.config import GVISOR_PIDS_MIN
from tests.conformance.kit import KitRun, run_kit
from tests.images.recipes import image
from tests.integration import gvisor
from tests.integration.daemon_process import DaemonProcess

_DIFFERENCES: Final = Path(__file__).with_name("differences")


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

    @property
    def differences(self) -> Path | None:
        """The list of known differences. Most kinds have none."""
        path = _DIFFERENCES / f"{self.name}.toml"
        return path if path.exists() else None

    def config(self) -> str:
        """A daemon's settings. Builds the image where it has to; skips where it cannot be."""
        lines = [f'default_profile = "{self.name}"', f"[profiles.{self.name}]", self.settings]
        if self.test_image:
            lines.append(f'image = "{image(self.test_image)}"')
        if self.gvisor:
            # Its own threads count against the limit as well.
            lines.append(f'runtime = "{gvisor.require()}"\npids = {GVISOR_PIDS_MIN}')
        return "\n".join(lines) + "\n"

    def judge(self, folder: Path, config: str) -> KitRun:
        """The kit's run against a daemon of its own, which keeps its state in the folder."""
        daemon = DaemonProcess(self.backend, folder / "state", config=config).start()
        try:
            return run_kit(daemon.address, folder, differences=self.differences)
        finally:
            daemon.end_for_good()


_ROOT: Final = 'user = "0:0"\nallow_root = true'
_GREP: Final = 'search = "grep"'

KINDS: Final = (
    Kind("default", "the default image, not root"),
    Kind("root", "the default image, as root", settings=_ROOT),
    Kind("busybox", "a static BusyBox and nothing else", test_image="busybox"),
    Kind("musl", "a shell linked against musl", test_image="musl"),
    Kind("shellless", "one static program, no shell", test_image="shellless"),
    Kind("gvisor", "the default image under gVisor", gvisor=True),
    Kind("grep", "the default image, searched by GNU grep", settings=_GREP),
    Kind("busybox-grep", "BusyBox, searched by its grep", settings=_GREP, test_image="busybox"),
    Kind("local", "no container at all", backend="local"),
)
