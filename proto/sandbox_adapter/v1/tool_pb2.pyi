import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from sandbox_adapter.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EffectClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_CLASS_UNSPECIFIED: _ClassVar[EffectClass]
    EFFECT_CLASS_READ: _ClassVar[EffectClass]
    EFFECT_CLASS_MUTATE: _ClassVar[EffectClass]
    EFFECT_CLASS_DESTRUCTIVE: _ClassVar[EffectClass]
    EFFECT_CLASS_OPAQUE: _ClassVar[EffectClass]

class Ending(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDING_UNSPECIFIED: _ClassVar[Ending]
    ENDING_COMPLETED: _ClassVar[Ending]
    ENDING_EXITED: _ClassVar[Ending]
    ENDING_SIGNALED: _ClassVar[Ending]
    ENDING_TIMED_OUT: _ClassVar[Ending]
    ENDING_CANCELLED: _ClassVar[Ending]
    ENDING_OOM_KILLED: _ClassVar[Ending]
    ENDING_PIDS_EXHAUSTED: _ClassVar[Ending]
    ENDING_DISK_FULL: _ClassVar[Ending]
    ENDING_SANDBOX_LOST: _ClassVar[Ending]
    ENDING_UNKNOWN: _ClassVar[Ending]

class CallState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_STATE_UNSPECIFIED: _ClassVar[CallState]
    CALL_STATE_NEVER_SEEN: _ClassVar[CallState]
    CALL_STATE_RUNNING: _ClassVar[CallState]
    CALL_STATE_FINISHED: _ClassVar[CallState]
    CALL_STATE_UNKNOWN: _ClassVar[CallState]
EFFECT_CLASS_UNSPECIFIED: EffectClass
EFFECT_CLASS_READ: EffectClass
EFFECT_CLASS_MUTATE: EffectClass
EFFECT_CLASS_DESTRUCTIVE: EffectClass
EFFECT_CLASS_OPAQUE: EffectClass
ENDING_UNSPECIFIED: Ending
ENDING_COMPLETED: Ending
ENDING_EXITED: Ending
ENDING_SIGNALED: Ending
ENDING_TIMED_OUT: Ending
ENDING_CANCELLED: Ending
ENDING_OOM_KILLED: Ending
ENDING_PIDS_EXHAUSTED: Ending
ENDING_DISK_FULL: Ending
ENDING_SANDBOX_LOST: Ending
ENDING_UNKNOWN: Ending
CALL_STATE_UNSPECIFIED: CallState
CALL_STATE_NEVER_SEEN: CallState
CALL_STATE_RUNNING: CallState
CALL_STATE_FINISHED: CallState
CALL_STATE_UNKNOWN: CallState

class ListToolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListToolsResponse(_message.Message):
    __slots__ = ("tools",)
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    def __init__(self, tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "input_schema_json", "effect", "parallel", "timeout_default", "timeout_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    input_schema_json: str
    effect: EffectClass
    parallel: bool
    timeout_default: _duration_pb2.Duration
    timeout_max: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema_json: _Optional[str] = ..., effect: _Optional[_Union[EffectClass, str]] = ..., parallel: _Optional[bool] = ..., timeout_default: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout_max: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CallToolRequest(_message.Message):
    __slots__ = ("session_id", "call_id", "epoch", "read", "write", "edit", "bash", "grep", "glob", "custom", "cancel_on_disconnect")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    BASH_FIELD_NUMBER: _ClassVar[int]
    GREP_FIELD_NUMBER: _ClassVar[int]
    GLOB_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    CANCEL_ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    call_id: str
    epoch: int
    read: ReadInput
    write: WriteInput
    edit: EditInput
    bash: BashInput
    grep: GrepInput
    glob: GlobInput
    custom: CustomInput
    cancel_on_disconnect: bool
    def __init__(self, session_id: _Optional[str] = ..., call_id: _Optional[str] = ..., epoch: _Optional[int] = ..., read: _Optional[_Union[ReadInput, _Mapping]] = ..., write: _Optional[_Union[WriteInput, _Mapping]] = ..., edit: _Optional[_Union[EditInput, _Mapping]] = ..., bash: _Optional[_Union[BashInput, _Mapping]] = ..., grep: _Optional[_Union[GrepInput, _Mapping]] = ..., glob: _Optional[_Union[GlobInput, _Mapping]] = ..., custom: _Optional[_Union[CustomInput, _Mapping]] = ..., cancel_on_disconnect: _Optional[bool] = ...) -> None: ...

class ReadInput(_message.Message):
    __slots__ = ("path", "offset", "limit")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    limit: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class WriteInput(_message.Message):
    __slots__ = ("path", "content", "expected_version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: str
    expected_version: str
    def __init__(self, path: _Optional[str] = ..., content: _Optional[str] = ..., expected_version: _Optional[str] = ...) -> None: ...

class EditInput(_message.Message):
    __slots__ = ("path", "old_text", "new_text", "replace_all", "expected_version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OLD_TEXT_FIELD_NUMBER: _ClassVar[int]
    NEW_TEXT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_ALL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    old_text: str
    new_text: str
    replace_all: bool
    expected_version: str
    def __init__(self, path: _Optional[str] = ..., old_text: _Optional[str] = ..., new_text: _Optional[str] = ..., replace_all: _Optional[bool] = ..., expected_version: _Optional[str] = ...) -> None: ...

class BashInput(_message.Message):
    __slots__ = ("command", "timeout_seconds")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    command: str
    timeout_seconds: float
    def __init__(self, command: _Optional[str] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class GrepInput(_message.Message):
    __slots__ = ("pattern", "path", "include", "literal")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    path: str
    include: str
    literal: bool
    def __init__(self, pattern: _Optional[str] = ..., path: _Optional[str] = ..., include: _Optional[str] = ..., literal: _Optional[bool] = ...) -> None: ...

class GlobInput(_message.Message):
    __slots__ = ("pattern", "path")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    path: str
    def __init__(self, pattern: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class CustomInput(_message.Message):
    __slots__ = ("name", "json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    json: str
    def __init__(self, name: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class CallToolResponse(_message.Message):
    __slots__ = ("call_id", "result")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    result: ToolResult
    def __init__(self, call_id: _Optional[str] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("text", "is_error", "reason", "ending", "exit_code", "signal", "limit", "truncated", "bytes_total", "lines_total", "spill_path", "survivors", "read", "write", "edit", "bash", "grep", "glob", "generation", "started_at", "duration", "replayed")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LINES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SPILL_PATH_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    BASH_FIELD_NUMBER: _ClassVar[int]
    GREP_FIELD_NUMBER: _ClassVar[int]
    GLOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    text: str
    is_error: bool
    reason: _error_pb2.Reason
    ending: Ending
    exit_code: int
    signal: int
    limit: Limit
    truncated: bool
    bytes_total: int
    lines_total: int
    spill_path: str
    survivors: _containers.RepeatedCompositeFieldContainer[Survivor]
    read: ReadDetails
    write: WriteDetails
    edit: EditDetails
    bash: BashDetails
    grep: GrepDetails
    glob: GlobDetails
    generation: int
    started_at: _timestamp_pb2.Timestamp
    duration: _duration_pb2.Duration
    replayed: bool
    def __init__(self, text: _Optional[str] = ..., is_error: _Optional[bool] = ..., reason: _Optional[_Union[_error_pb2.Reason, str]] = ..., ending: _Optional[_Union[Ending, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., limit: _Optional[_Union[Limit, _Mapping]] = ..., truncated: _Optional[bool] = ..., bytes_total: _Optional[int] = ..., lines_total: _Optional[int] = ..., spill_path: _Optional[str] = ..., survivors: _Optional[_Iterable[_Union[Survivor, _Mapping]]] = ..., read: _Optional[_Union[ReadDetails, _Mapping]] = ..., write: _Optional[_Union[WriteDetails, _Mapping]] = ..., edit: _Optional[_Union[EditDetails, _Mapping]] = ..., bash: _Optional[_Union[BashDetails, _Mapping]] = ..., grep: _Optional[_Union[GrepDetails, _Mapping]] = ..., glob: _Optional[_Union[GlobDetails, _Mapping]] = ..., generation: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("kind", "limit", "peak", "victim")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PEAK_FIELD_NUMBER: _ClassVar[int]
    VICTIM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    limit: int
    peak: int
    victim: str
    def __init__(self, kind: _Optional[str] = ..., limit: _Optional[int] = ..., peak: _Optional[int] = ..., victim: _Optional[str] = ...) -> None: ...

class Survivor(_message.Message):
    __slots__ = ("pid", "name")
    PID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    pid: int
    name: str
    def __init__(self, pid: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class ReadDetails(_message.Message):
    __slots__ = ("first_line", "last_line", "total_exact", "next_offset", "replaced_bytes", "version")
    FIRST_LINE_FIELD_NUMBER: _ClassVar[int]
    LAST_LINE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EXACT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    first_line: int
    last_line: int
    total_exact: bool
    next_offset: int
    replaced_bytes: bool
    version: str
    def __init__(self, first_line: _Optional[int] = ..., last_line: _Optional[int] = ..., total_exact: _Optional[bool] = ..., next_offset: _Optional[int] = ..., replaced_bytes: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class WriteDetails(_message.Message):
    __slots__ = ("bytes_written", "created", "version")
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bytes_written: int
    created: bool
    version: str
    def __init__(self, bytes_written: _Optional[int] = ..., created: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class EditDetails(_message.Message):
    __slots__ = ("replacements", "lines", "version")
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    replacements: int
    lines: _containers.RepeatedScalarFieldContainer[int]
    version: str
    def __init__(self, replacements: _Optional[int] = ..., lines: _Optional[_Iterable[int]] = ..., version: _Optional[str] = ...) -> None: ...

class BashDetails(_message.Message):
    __slots__ = ("timeout", "timeout_clamped", "spill_bytes", "output_open", "binary")
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_CLAMPED_FIELD_NUMBER: _ClassVar[int]
    SPILL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_OPEN_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    timeout: _duration_pb2.Duration
    timeout_clamped: bool
    spill_bytes: int
    output_open: bool
    binary: bool
    def __init__(self, timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout_clamped: _Optional[bool] = ..., spill_bytes: _Optional[int] = ..., output_open: _Optional[bool] = ..., binary: _Optional[bool] = ...) -> None: ...

class GrepDetails(_message.Message):
    __slots__ = ("matches", "capped", "unsearched", "ignored_matches", "timed_out")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    UNSEARCHED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_MATCHES_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[GrepMatch]
    capped: bool
    unsearched: int
    ignored_matches: int
    timed_out: bool
    def __init__(self, matches: _Optional[_Iterable[_Union[GrepMatch, _Mapping]]] = ..., capped: _Optional[bool] = ..., unsearched: _Optional[int] = ..., ignored_matches: _Optional[int] = ..., timed_out: _Optional[bool] = ...) -> None: ...

class GrepMatch(_message.Message):
    __slots__ = ("path", "line", "text")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    path: str
    line: int
    text: str
    def __init__(self, path: _Optional[str] = ..., line: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class GlobDetails(_message.Message):
    __slots__ = ("paths", "capped", "unsearched", "timed_out")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    UNSEARCHED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    capped: bool
    unsearched: int
    timed_out: bool
    def __init__(self, paths: _Optional[_Iterable[str]] = ..., capped: _Optional[bool] = ..., unsearched: _Optional[int] = ..., timed_out: _Optional[bool] = ...) -> None: ...

class GetCallRequest(_message.Message):
    __slots__ = ("session_id", "call_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    call_id: str
    def __init__(self, session_id: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class GetCallResponse(_message.Message):
    __slots__ = ("state", "result", "reason", "boot_id", "ledger_id")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    state: CallState
    result: ToolResult
    reason: _error_pb2.Reason
    boot_id: str
    ledger_id: str
    def __init__(self, state: _Optional[_Union[CallState, str]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ..., reason: _Optional[_Union[_error_pb2.Reason, str]] = ..., boot_id: _Optional[str] = ..., ledger_id: _Optional[str] = ...) -> None: ...

class CancelCallRequest(_message.Message):
    __slots__ = ("session_id", "call_id", "epoch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    call_id: str
    epoch: int
    def __init__(self, session_id: _Optional[str] = ..., call_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CancelCallResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ToolResult
    def __init__(self, result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class WatchCallRequest(_message.Message):
    __slots__ = ("session_id", "call_id", "after_sequence", "heartbeat_interval")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    call_id: str
    after_sequence: int
    heartbeat_interval: _duration_pb2.Duration
    def __init__(self, session_id: _Optional[str] = ..., call_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchCallResponse(_message.Message):
    __slots__ = ("sequence", "started", "output", "heartbeat", "result", "resume_from")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    started: CallStarted
    output: CallOutput
    heartbeat: CallHeartbeat
    result: ToolResult
    resume_from: CallResumeFrom
    def __init__(self, sequence: _Optional[int] = ..., started: _Optional[_Union[CallStarted, _Mapping]] = ..., output: _Optional[_Union[CallOutput, _Mapping]] = ..., heartbeat: _Optional[_Union[CallHeartbeat, _Mapping]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ..., resume_from: _Optional[_Union[CallResumeFrom, _Mapping]] = ...) -> None: ...

class CallStarted(_message.Message):
    __slots__ = ("started_at", "generation")
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    started_at: _timestamp_pb2.Timestamp
    generation: int
    def __init__(self, started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class CallOutput(_message.Message):
    __slots__ = ("data", "bytes_dropped")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BYTES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    bytes_dropped: int
    def __init__(self, data: _Optional[bytes] = ..., bytes_dropped: _Optional[int] = ...) -> None: ...

class CallHeartbeat(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: _duration_pb2.Duration
    def __init__(self, running: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CallResumeFrom(_message.Message):
    __slots__ = ("after_sequence",)
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    after_sequence: int
    def __init__(self, after_sequence: _Optional[int] = ...) -> None: ...
