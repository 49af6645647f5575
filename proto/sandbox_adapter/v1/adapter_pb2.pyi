import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from sandbox_adapter.v1 import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_WATCH_CALL: _ClassVar[Capability]
    CAPABILITY_FILES: _ClassVar[Capability]
    CAPABILITY_PROCESSES: _ClassVar[Capability]
    CAPABILITY_PTY: _ClassVar[Capability]
    CAPABILITY_ISOLATED: _ClassVar[Capability]
    CAPABILITY_SIX_TOOLS: _ClassVar[Capability]
    CAPABILITY_CUSTOM_TOOLS: _ClassVar[Capability]
    CAPABILITY_DISK_QUOTA: _ClassVar[Capability]
    CAPABILITY_OOM_CAUSE: _ClassVar[Capability]
    CAPABILITY_CONFIRMED_CANCEL: _ClassVar[Capability]
    CAPABILITY_SURVIVES_RESTART: _ClassVar[Capability]
    CAPABILITY_NETWORK_ALLOWLIST: _ClassVar[Capability]
    CAPABILITY_SNAPSHOT: _ClassVar[Capability]
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_WATCH_CALL: Capability
CAPABILITY_FILES: Capability
CAPABILITY_PROCESSES: Capability
CAPABILITY_PTY: Capability
CAPABILITY_ISOLATED: Capability
CAPABILITY_SIX_TOOLS: Capability
CAPABILITY_CUSTOM_TOOLS: Capability
CAPABILITY_DISK_QUOTA: Capability
CAPABILITY_OOM_CAUSE: Capability
CAPABILITY_CONFIRMED_CANCEL: Capability
CAPABILITY_SURVIVES_RESTART: Capability
CAPABILITY_NETWORK_ALLOWLIST: Capability
CAPABILITY_SNAPSHOT: Capability

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("name", "version", "contract_versions", "capabilities", "profiles", "limits", "capacity", "boot_id", "ledger_id", "backend")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    contract_versions: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    profiles: _containers.RepeatedCompositeFieldContainer[Profile]
    limits: Limits
    capacity: Capacity
    boot_id: str
    ledger_id: str
    backend: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., contract_versions: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., profiles: _Optional[_Iterable[_Union[Profile, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., capacity: _Optional[_Union[Capacity, _Mapping]] = ..., boot_id: _Optional[str] = ..., ledger_id: _Optional[str] = ..., backend: _Optional[str] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("name", "description", "image", "runtime", "resources", "network", "is_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    image: str
    runtime: str
    resources: _session_pb2.Resources
    network: _session_pb2.Network
    is_default: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., image: _Optional[str] = ..., runtime: _Optional[str] = ..., resources: _Optional[_Union[_session_pb2.Resources, _Mapping]] = ..., network: _Optional[_Union[_session_pb2.Network, str]] = ..., is_default: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("read_lines_max", "read_bytes_max", "bash_lines_max", "bash_bytes_max", "grep_matches_max", "grep_line_chars_max", "glob_paths_max", "bash_timeout_default", "bash_timeout_max", "search_timeout", "write_bytes_max", "edit_file_bytes_max", "message_bytes_max", "chunk_bytes_max", "spill_bytes_max", "spill_total_bytes_max", "calls_parallel_max", "calls_queued_max", "result_retention", "result_bytes_max", "tombstone_retention", "kill_grace", "read_scan", "env_bytes_max", "labels_max", "label_key_chars_max", "label_value_chars_max", "list_page_max", "input_depth_max", "calls_recorded_max", "verbs_parallel_max", "verb_timeout", "upload_idle", "keepalive_min", "glob_entries_max", "process_output_bytes_max", "processes_max", "processes_ended_max", "processes_recorded_max", "process_output_total_bytes_max", "watchers_parallel_max", "process_verbs_max", "process_argument_bytes_max", "stream_life", "call_awaited")
    READ_LINES_MAX_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BASH_LINES_MAX_FIELD_NUMBER: _ClassVar[int]
    BASH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    GREP_MATCHES_MAX_FIELD_NUMBER: _ClassVar[int]
    GREP_LINE_CHARS_MAX_FIELD_NUMBER: _ClassVar[int]
    GLOB_PATHS_MAX_FIELD_NUMBER: _ClassVar[int]
    BASH_TIMEOUT_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    BASH_TIMEOUT_MAX_FIELD_NUMBER: _ClassVar[int]
    SEARCH_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WRITE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    EDIT_FILE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SPILL_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SPILL_TOTAL_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CALLS_PARALLEL_MAX_FIELD_NUMBER: _ClassVar[int]
    CALLS_QUEUED_MAX_FIELD_NUMBER: _ClassVar[int]
    RESULT_RETENTION_FIELD_NUMBER: _ClassVar[int]
    RESULT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_FIELD_NUMBER: _ClassVar[int]
    KILL_GRACE_FIELD_NUMBER: _ClassVar[int]
    READ_SCAN_FIELD_NUMBER: _ClassVar[int]
    ENV_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    LABELS_MAX_FIELD_NUMBER: _ClassVar[int]
    LABEL_KEY_CHARS_MAX_FIELD_NUMBER: _ClassVar[int]
    LABEL_VALUE_CHARS_MAX_FIELD_NUMBER: _ClassVar[int]
    LIST_PAGE_MAX_FIELD_NUMBER: _ClassVar[int]
    INPUT_DEPTH_MAX_FIELD_NUMBER: _ClassVar[int]
    CALLS_RECORDED_MAX_FIELD_NUMBER: _ClassVar[int]
    VERBS_PARALLEL_MAX_FIELD_NUMBER: _ClassVar[int]
    VERB_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_IDLE_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MIN_FIELD_NUMBER: _ClassVar[int]
    GLOB_ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESS_OUTPUT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_ENDED_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_RECORDED_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESS_OUTPUT_TOTAL_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_PARALLEL_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESS_VERBS_MAX_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ARGUMENT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    STREAM_LIFE_FIELD_NUMBER: _ClassVar[int]
    CALL_AWAITED_FIELD_NUMBER: _ClassVar[int]
    read_lines_max: int
    read_bytes_max: int
    bash_lines_max: int
    bash_bytes_max: int
    grep_matches_max: int
    grep_line_chars_max: int
    glob_paths_max: int
    bash_timeout_default: _duration_pb2.Duration
    bash_timeout_max: _duration_pb2.Duration
    search_timeout: _duration_pb2.Duration
    write_bytes_max: int
    edit_file_bytes_max: int
    message_bytes_max: int
    chunk_bytes_max: int
    spill_bytes_max: int
    spill_total_bytes_max: int
    calls_parallel_max: int
    calls_queued_max: int
    result_retention: _duration_pb2.Duration
    result_bytes_max: int
    tombstone_retention: _duration_pb2.Duration
    kill_grace: _duration_pb2.Duration
    read_scan: _duration_pb2.Duration
    env_bytes_max: int
    labels_max: int
    label_key_chars_max: int
    label_value_chars_max: int
    list_page_max: int
    input_depth_max: int
    calls_recorded_max: int
    verbs_parallel_max: int
    verb_timeout: _duration_pb2.Duration
    upload_idle: _duration_pb2.Duration
    keepalive_min: _duration_pb2.Duration
    glob_entries_max: int
    process_output_bytes_max: int
    processes_max: int
    processes_ended_max: int
    processes_recorded_max: int
    process_output_total_bytes_max: int
    watchers_parallel_max: int
    process_verbs_max: int
    process_argument_bytes_max: int
    stream_life: _duration_pb2.Duration
    call_awaited: _duration_pb2.Duration
    def __init__(self, read_lines_max: _Optional[int] = ..., read_bytes_max: _Optional[int] = ..., bash_lines_max: _Optional[int] = ..., bash_bytes_max: _Optional[int] = ..., grep_matches_max: _Optional[int] = ..., grep_line_chars_max: _Optional[int] = ..., glob_paths_max: _Optional[int] = ..., bash_timeout_default: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., bash_timeout_max: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., search_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., write_bytes_max: _Optional[int] = ..., edit_file_bytes_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., chunk_bytes_max: _Optional[int] = ..., spill_bytes_max: _Optional[int] = ..., spill_total_bytes_max: _Optional[int] = ..., calls_parallel_max: _Optional[int] = ..., calls_queued_max: _Optional[int] = ..., result_retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., result_bytes_max: _Optional[int] = ..., tombstone_retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., kill_grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., read_scan: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., env_bytes_max: _Optional[int] = ..., labels_max: _Optional[int] = ..., label_key_chars_max: _Optional[int] = ..., label_value_chars_max: _Optional[int] = ..., list_page_max: _Optional[int] = ..., input_depth_max: _Optional[int] = ..., calls_recorded_max: _Optional[int] = ..., verbs_parallel_max: _Optional[int] = ..., verb_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., upload_idle: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keepalive_min: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., glob_entries_max: _Optional[int] = ..., process_output_bytes_max: _Optional[int] = ..., processes_max: _Optional[int] = ..., processes_ended_max: _Optional[int] = ..., processes_recorded_max: _Optional[int] = ..., process_output_total_bytes_max: _Optional[int] = ..., watchers_parallel_max: _Optional[int] = ..., process_verbs_max: _Optional[int] = ..., process_argument_bytes_max: _Optional[int] = ..., stream_life: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., call_awaited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("sessions_open", "sessions_max")
    SESSIONS_OPEN_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    sessions_open: int
    sessions_max: int
    def __init__(self, sessions_open: _Optional[int] = ..., sessions_max: _Optional[int] = ...) -> None: ...
