"""The contract between an orchestrator and a sandbox, and a client for it.

`sandbox_adapter.v1` holds the generated code of the contract, `client` a thin
asyncio client, `errors` what it raises.
"""
