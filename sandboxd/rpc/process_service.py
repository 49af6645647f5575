"""`ProcessService`: part of the contract, and not claimed by this adapter yet."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sandbox_adapter.v1 import process_pb2, process_pb2_grpc
from sandboxd.errors import NotServed
from sandboxd.rpc.errors import Context


def _not_served() -> NotServed:
    return NotServed("PROCESSES")


def _no_responses() -> list[process_pb2.ReadOutputResponse]:
    raise _not_served()


class ProcessService(process_pb2_grpc.ProcessServiceServicer):
    """Every RPC answers UNIMPLEMENTED with the reason NOT_SERVED, as the contract says."""

    async def StartProcess(
        self, request: process_pb2.StartProcessRequest, context: Context
    ) -> process_pb2.StartProcessResponse:
        raise _not_served()

    async def ReadOutput(
        self, request: process_pb2.ReadOutputRequest, context: Context
    ) -> AsyncIterator[process_pb2.ReadOutputResponse]:
        for response in _no_responses():
            yield response

    async def WriteInput(
        self, request: process_pb2.WriteInputRequest, context: Context
    ) -> process_pb2.WriteInputResponse:
        raise _not_served()

    async def SignalProcess(
        self, request: process_pb2.SignalProcessRequest, context: Context
    ) -> process_pb2.SignalProcessResponse:
        raise _not_served()

    async def WaitProcess(
        self, request: process_pb2.WaitProcessRequest, context: Context
    ) -> process_pb2.WaitProcessResponse:
        raise _not_served()

    async def ListProcesses(
        self, request: process_pb2.ListProcessesRequest, context: Context
    ) -> process_pb2.ListProcessesResponse:
        raise _not_served()

    async def ResizeTerminal(
        self, request: process_pb2.ResizeTerminalRequest, context: Context
    ) -> process_pb2.ResizeTerminalResponse:
        raise _not_served()
