"""Checking what a guest answers: hostile input until it has passed here (security S8).

Each tool describes the facts that it expects as a `Facts` model, with bounds on
every number and length. Facts that do not fit end the session, like any other
breach of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandboxd.errors import SandboxLost

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A count or a size: nothing real is larger, and every JSON reader takes it."""


class Facts(BaseModel):
    """Base of all models of facts: no conversions, unknown facts are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


FactsT = TypeVar("FactsT", bound=Facts)


def parse_facts(model: type[FactsT], facts: Mapping[str, Any]) -> FactsT:
    """The facts as `model`. Raises `SandboxLost` PROTOCOL where they do not fit.

    The operator's text names the places and rules, never the values.
    """
    try:
        return model.model_validate(dict(facts))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        first = faults[0]
        place = ".".join(str(part) for part in first["loc"])[:100]
        raise SandboxLost(
            "PROTOCOL",
            f"{model.__name__}: {len(faults)} facts do not fit; `{place}`: {first['msg']}",
        ) from None
