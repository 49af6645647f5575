"""The tools of this adapter, by name, in the order in which a model is shown them."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxd.config import BashSettings
from sandboxd.errors import UnknownTool
from sandboxd.tools.base import Tool
from sandboxd.tools.bash import BashTool
from sandboxd.tools.edit import EditTool
from sandboxd.tools.glob import GlobTool
from sandboxd.tools.grep import GrepTool
from sandboxd.tools.read import ReadTool
from sandboxd.tools.write import WriteTool


class Registry:
    """A fixed set of tools."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def all(self) -> list[Tool]:
        return list(self._tools.values())

    def find(self, name: str) -> Tool:
        """The tool of this name. Raises `UnknownTool`, which names those that exist."""
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(name, list(self._tools))
        return tool


def six_tools(bash: BashSettings) -> Registry:
    """The six tools of contract.md 6, as the operator set them."""
    return Registry(
        [
            ReadTool(),
            WriteTool(),
            EditTool(),
            BashTool(bash.timeout_default_s, bash.timeout_max_s),
            GrepTool(),
            GlobTool(),
        ]
    )
