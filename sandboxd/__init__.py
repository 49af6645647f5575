"""The reference adapter: runs tool calls of agents in hardened containers."""

__version__ = "0.1.0"
