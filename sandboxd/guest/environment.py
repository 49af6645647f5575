"""The environment of commands (tool-cases B13 to B15).

Least first: our settings for programs that would ask, page or colour; what the
image says; who the user is; what the session says; what is forced. The guest's
own variables, its secret among none of them, are never part of it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .ops import Answer, Machine, Op, OpError, Request

PATH_DEFAULT: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES_MAX: Final = 1024

_SETTINGS: Final = {
    "PATH": PATH_DEFAULT,
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    # No terminal is there to ask: an answer of "no" beats waiting for one.
    "GIT_ASKPASS": "/bin/false",
    "SSH_ASKPASS": "/bin/false",
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    # A commit without a message then fails with one; a rebase takes its plan as it is.
    "GIT_EDITOR": ":",
    "EDITOR": ":",
}
_FORCED: Final = {"GIT_TERMINAL_PROMPT": "0"}
_NEVER: Final = (
    # Each would run code or change the meaning of commands before they start.
    "BASH_ENV",
    "ENV",
    "PS1",
    "PROMPT_COMMAND",
    "RIPGREP_CONFIG_PATH",
    "GREP_OPTIONS",
    "OLDPWD",
    "SHLVL",
    "_",
)


def environment_of(value: Any) -> dict[str, str]:
    """Checks a JSON object of variables. Raises ValueError."""
    if not isinstance(value, dict) or len(value) > VARIABLES_MAX:
        raise ValueError(f"an environment is an object of at most {VARIABLES_MAX} variables")
    for name, text in value.items():
        if not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise ValueError("a variable has a name without `=`, and a text without NUL")
        (name + text).encode("utf-8")
    return dict(value)


def command_environment(machine: Machine) -> dict[str, str]:
    """What a command of the session gets, its call's marker excepted."""
    user = {
        "HOME": machine.home,
        "USER": machine.user,
        "LOGNAME": machine.user,
        "SHELL": machine.shell or "",
    }
    if machine.root is not None:
        # Goes with the session's folder; the host's own would keep what is left in it.
        user["TMPDIR"] = f"{machine.root}/tmp"
    image = dict(machine.base_env)
    if not image.get("PATH"):
        # Set to nothing, no command could be found.
        image.pop("PATH", None)
    merged = {**_SETTINGS, **image, **user, **machine.env, **_FORCED}
    for name in _NEVER:
        merged.pop(name, None)
    merged["PWD"] = machine.workdir
    return merged


def _configure(request: Request) -> Answer:
    try:
        environment = environment_of(json.loads(request.body))
    except (ValueError, RecursionError):
        raise OpError(
            "INVALID_INPUT", "the session's environment must be an object of texts"
        ) from None
    request.machine.env = environment
    return {}, b""


OPS: Final = {"configure": Op(_configure, "control")}
