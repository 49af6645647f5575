"""Everything that can end a run, drawn as one tree, each class with its exit code.

Each error has a text for people: what happened, then the value. A failure that a
model can act on is never one of these; it is a result of its call.
"""

from __future__ import annotations

from typing import Final

EXIT_COMPLETED: Final = 0
EXIT_INTERNAL: Final = 1
EXIT_USAGE: Final = 2
EXIT_MODEL: Final = 3
EXIT_CEILING: Final = 4
EXIT_SANDBOX: Final = 5
EXIT_CONFLICTS: Final = 6
EXIT_WORKSPACE: Final = 7
EXIT_INTERRUPTED: Final = 130

EXIT_CODES: Final = f"""\
exit codes:
  {EXIT_COMPLETED:<4} the model finished, and its changes are in the workspace
  {EXIT_INTERNAL:<4} a fault of this program
  {EXIT_USAGE:<4} the command line, a setting or the log file is wrong
  {EXIT_MODEL:<4} the model could not be asked, or did not answer usably
  {EXIT_CEILING:<4} the ceiling of model calls was reached before the model finished
  {EXIT_SANDBOX:<4} the sandbox could not be reached or made, or was lost
  {EXIT_CONFLICTS:<4} the model finished, but some changes were not taken over
  {EXIT_WORKSPACE:<4} the workspace could not be copied into the sandbox
  {EXIT_INTERRUPTED:<4} interrupted
"""


class OrchestratorError(Exception):
    """Ends the run."""

    exit_code = EXIT_INTERNAL
    hint = ""
    """What the reader can do, shown on a line of its own. Empty: nothing."""


class UsageError(OrchestratorError):
    """The command line or a setting is wrong. Nothing was started."""

    exit_code = EXIT_USAGE


class StoreError(OrchestratorError):
    """The log cannot be opened, read or written."""

    exit_code = EXIT_USAGE


class CeilingReached(OrchestratorError):
    """The model was asked as often as it may be, and has not finished."""

    exit_code = EXIT_CEILING
    hint = "raise it with --max-calls"

    def __init__(self, calls_max: int) -> None:
        super().__init__(f"the ceiling of {calls_max} model calls was reached")


class SandboxFailed(OrchestratorError):
    """The sandbox cannot be reached or made, or takes no calls any more."""

    exit_code = EXIT_SANDBOX

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class WorkspaceError(OrchestratorError):
    """The workspace cannot be copied."""

    exit_code = EXIT_WORKSPACE


class ModelError(OrchestratorError):
    """A model call failed.

    `category` is one of `rate_limit`, `server_busy`, `authentication`,
    `model_not_found`, `too_many_tokens`, `network`, `quota_exceeded`,
    `server_error`, `invalid_request`, `garbled`, `refused`: the
    classes of what a provider answers, and what a stream can do beyond them.
    """

    exit_code = EXIT_MODEL

    def __init__(
        self,
        category: str,
        text: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.category = category
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class InvalidConversation(OrchestratorError):
    """The log does not fold into a conversation that may be sent: a fault of this program."""
