"""What the engine's refusals mean for a session's start.

The engine has no codes beyond HTTP statuses, so this reads its words, and only to
choose a better hint: the reason always comes from the phase. Its own words go to
the operator; they may name paths of the host.
"""

from __future__ import annotations

import re
from typing import Final

from sandboxd.backends.engine import EngineRefused
from sandboxd.config import ProfileSettings
from sandboxd.errors import CreateFailed, EngineDown

_LOCAL_ONLY: Final = "sandboxd/"
"""Images under this name are built on the worker; no registry has them."""

_START_HINTS: Final = (
    (
        re.compile(r"(?i)unknown (or invalid )?runtime"),
        "the engine has no runtime `{}`",
    ),
    (re.compile(r"no space left on device"), "the engine's disk is full"),
    (re.compile(r"(?i)memory limit"), "the engine refuses the memory limit"),
)


_IN_THE_WAY: Final = (
    # The engine's words, then the runtimes'. The host's paths stand elsewhere in them.
    re.compile(r"Cannot mkdir: (?P<place>/[^\s:]{1,200}) is not a directory"),
    re.compile(
        r"(?i)\bto rootfs at \\?\"(?P<place>/[^\"\\]{1,200})\\?\".*"
        r"(not a directory|is a directory|file exists|too many levels of symbolic links)"
    ),
    re.compile(r"/merged(?P<place>/etc/(passwd|group)): (is a directory|not a directory)"),
)
"""What an image holds where the daemon or the engine needs something else."""


def may_be_pulled(image: str) -> bool:
    """Whether some registry could have the image: not a bare id, and not our own build."""
    return not image.startswith((_LOCAL_ONLY, "sha256:"))


def image_missing(image: str) -> CreateFailed:
    return CreateFailed(
        "PULL_FAILED",
        f"the image `{image}` is not on this worker",
        f"image `{image}` is missing; `make images` builds the project's own",
    )


def pull_failed(image: str, error: EngineRefused | EngineDown) -> CreateFailed:
    text = error.operator_text
    if re.search(r"not found|does not exist|manifest unknown|denied", text):
        words = f"no registry gives out the image `{image}`"
    else:
        words = f"the image `{image}` could not be pulled"
    return CreateFailed("PULL_FAILED", words, text)


def start_failed(profile: ProfileSettings, error: EngineRefused) -> CreateFailed:
    text = error.operator_text
    for pattern, hint in _START_HINTS:
        if pattern.search(text):
            return CreateFailed("START_FAILED", hint.format(profile.runtime), text)
    for pattern in _IN_THE_WAY:
        if found := pattern.search(text):
            words = f"what the image has at or above `{found['place']}` is in the way of a mount"
            return CreateFailed("START_FAILED", words, text)
    return CreateFailed("START_FAILED", "the engine could not start the container", text)


def guest_not_ready(why: str, exit_code: int | None, log_tail: str) -> CreateFailed:
    """`why` is ours; the log is the guest's last words, for the operator."""
    code = "" if exit_code is None else f" (exit code {exit_code})"
    return CreateFailed(
        "GUEST_NOT_READY", f"the sandbox's guest {why}{code}", f"{why}{code}; log: {log_tail!r}"
    )
