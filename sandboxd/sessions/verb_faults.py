"""What a fault of the guest means to the caller of a file or process verb (security S8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandbox_adapter.v1 import error_pb2
from sandboxd.errors import CallerError, GuestFault, SandboxdError

_FAULTS: Final = range(100, 160)
"""Numbers of the faults of a tool or verb in `error.proto`."""
FAULT_REASONS: Final = frozenset(
    value.name.removeprefix("REASON_")
    for value in error_pb2.Reason.DESCRIPTOR.values
    if value.number in _FAULTS
)
"""What a guest may say. Of sessions, callers and the worker it knows nothing."""


def told(error: GuestFault, fault: Callable[[str, str], CallerError]) -> SandboxdError:
    """What the caller gets for a guest's fault; `fault` makes it of a reason and a text.

    A fault of the guest's own code is none of the caller's: it is no `CallerError`, so that
    `rpc/errors.py` logs it and answers INTERNAL.
    """
    if error.reason == "INTERNAL_ERROR":
        return SandboxdError("the guest met a fault of its own", error.operator_text)
    return fault(error.reason if error.reason in FAULT_REASONS else "IO_ERROR", str(error))
