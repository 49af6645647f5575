import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROCESS_STATE_UNSPECIFIED: _ClassVar[ProcessState]
    PROCESS_STATE_RUNNING: _ClassVar[ProcessState]
    PROCESS_STATE_ENDED: _ClassVar[ProcessState]
    PROCESS_STATE_LOST: _ClassVar[ProcessState]

class OutputStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_STREAM_UNSPECIFIED: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDOUT: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDERR: _ClassVar[OutputStream]
PROCESS_STATE_UNSPECIFIED: ProcessState
PROCESS_STATE_RUNNING: ProcessState
PROCESS_STATE_ENDED: ProcessState
PROCESS_STATE_LOST: ProcessState
OUTPUT_STREAM_UNSPECIFIED: OutputStream
OUTPUT_STREAM_STDOUT: OutputStream
OUTPUT_STREAM_STDERR: OutputStream

class StartProcessRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "epoch", "argv", "cwd", "env", "terminal", "timeout")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    epoch: int
    argv: _containers.RepeatedScalarFieldContainer[str]
    cwd: str
    env: _containers.ScalarMap[str, str]
    terminal: TerminalSize
    timeout: _duration_pb2.Duration
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., epoch: _Optional[int] = ..., argv: _Optional[_Iterable[str]] = ..., cwd: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ..., terminal: _Optional[_Union[TerminalSize, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TerminalSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class StartProcessResponse(_message.Message):
    __slots__ = ("process", "replayed")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    process: Process
    replayed: bool
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("process_id", "pid", "argv", "state", "exit_code", "signal", "call_id", "generation", "started_at", "ended_at")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    process_id: str
    pid: int
    argv: _containers.RepeatedScalarFieldContainer[str]
    state: ProcessState
    exit_code: int
    signal: int
    call_id: str
    generation: int
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, process_id: _Optional[str] = ..., pid: _Optional[int] = ..., argv: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[ProcessState, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., call_id: _Optional[str] = ..., generation: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReadOutputRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "stream", "offset", "follow")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    stream: OutputStream
    offset: int
    follow: bool
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., stream: _Optional[_Union[OutputStream, str]] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadOutputResponse(_message.Message):
    __slots__ = ("offset", "data", "bytes_dropped", "closed")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BYTES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    bytes_dropped: int
    closed: bool
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., bytes_dropped: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class WriteInputRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "epoch", "offset", "data", "close")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    epoch: int
    offset: int
    data: bytes
    close: bool
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., close: _Optional[bool] = ...) -> None: ...

class WriteInputResponse(_message.Message):
    __slots__ = ("bytes_written", "closed")
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    bytes_written: int
    closed: bool
    def __init__(self, bytes_written: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class SignalProcessRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "epoch", "signal")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    epoch: int
    signal: int
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., epoch: _Optional[int] = ..., signal: _Optional[int] = ...) -> None: ...

class SignalProcessResponse(_message.Message):
    __slots__ = ("delivered",)
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    delivered: bool
    def __init__(self, delivered: _Optional[bool] = ...) -> None: ...

class WaitProcessRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "wait_timeout")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    wait_timeout: _duration_pb2.Duration
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., wait_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WaitProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class ListProcessesRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ListProcessesResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ...) -> None: ...

class ResizeTerminalRequest(_message.Message):
    __slots__ = ("session_id", "process_id", "epoch", "terminal")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    process_id: str
    epoch: int
    terminal: TerminalSize
    def __init__(self, session_id: _Optional[str] = ..., process_id: _Optional[str] = ..., epoch: _Optional[int] = ..., terminal: _Optional[_Union[TerminalSize, _Mapping]] = ...) -> None: ...

class ResizeTerminalResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
