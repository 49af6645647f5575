"""Paths that lead out of the session's folder: fine in a sandbox that isolates.

An adapter that claims no isolation may refuse them (PATH_OUTSIDE), and then refuses all.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import ISOLATED
from sandbox_adapter.v1 import tool_pb2


def may_lead_out(place: Place, wrote: tool_pb2.ToolResult) -> bool:
    """Whether paths may lead out here, by the answer to a write of such a path.

    Raises `Broken` where it failed for another reason, or the adapter claims ISOLATED.
    """
    if not wrote.is_error or place.target.claims(ISOLATED):
        expect.fine(wrote)
        return True
    expect.refused(wrote, "PATH_OUTSIDE")
    return False


def devices_refused(place: Place, results: Mapping[str, tool_pb2.ToolResult]) -> None:
    """Each result, by the path of a device, refuses it as that, or all as PATH_OUTSIDE."""
    reasons = {expect.reason_of(result) for result in results.values()}
    outside = reasons == {"PATH_OUTSIDE"} and not place.target.claims(ISOLATED)
    for path, result in results.items():
        expect.refused(result, "PATH_OUTSIDE" if outside else "NOT_REGULAR")
        expect.says(result.text, path)
