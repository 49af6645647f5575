"""The orchestrator: makes the model calls, runs what they ask for in a sandbox, keeps the log.

It knows a sandbox only through the contract (`proto/sandbox_adapter`).
"""
