import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FileKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FILE_KIND_UNSPECIFIED: _ClassVar[FileKind]
    FILE_KIND_FILE: _ClassVar[FileKind]
    FILE_KIND_DIRECTORY: _ClassVar[FileKind]
    FILE_KIND_SYMLINK: _ClassVar[FileKind]
    FILE_KIND_SPECIAL: _ClassVar[FileKind]
FILE_KIND_UNSPECIFIED: FileKind
FILE_KIND_FILE: FileKind
FILE_KIND_DIRECTORY: FileKind
FILE_KIND_SYMLINK: FileKind
FILE_KIND_SPECIAL: FileKind

class FileStat(_message.Message):
    __slots__ = ("kind", "size", "mode", "uid", "gid", "modified_at", "version", "link_target")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LINK_TARGET_FIELD_NUMBER: _ClassVar[int]
    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    modified_at: _timestamp_pb2.Timestamp
    version: str
    link_target: str
    def __init__(self, kind: _Optional[_Union[FileKind, str]] = ..., size: _Optional[int] = ..., mode: _Optional[int] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., modified_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[str] = ..., link_target: _Optional[str] = ...) -> None: ...

class ReadFileRequest(_message.Message):
    __slots__ = ("session_id", "path", "offset", "length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    offset: int
    length: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadFileResponse(_message.Message):
    __slots__ = ("stat", "data")
    STAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stat: FileStat
    data: bytes
    def __init__(self, stat: _Optional[_Union[FileStat, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteFileRequest(_message.Message):
    __slots__ = ("header", "data", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: WriteFileHeader
    data: bytes
    end: WriteFileEnd
    def __init__(self, header: _Optional[_Union[WriteFileHeader, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[WriteFileEnd, _Mapping]] = ...) -> None: ...

class WriteFileEnd(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class WriteFileHeader(_message.Message):
    __slots__ = ("session_id", "path", "epoch", "mode", "make_parents", "expected_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAKE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    epoch: int
    mode: int
    make_parents: bool
    expected_version: str
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., epoch: _Optional[int] = ..., mode: _Optional[int] = ..., make_parents: _Optional[bool] = ..., expected_version: _Optional[str] = ...) -> None: ...

class WriteFileResponse(_message.Message):
    __slots__ = ("bytes_written", "created", "version")
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bytes_written: int
    created: bool
    version: str
    def __init__(self, bytes_written: _Optional[int] = ..., created: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class StatPathRequest(_message.Message):
    __slots__ = ("session_id", "path", "no_follow")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    no_follow: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., no_follow: _Optional[bool] = ...) -> None: ...

class StatPathResponse(_message.Message):
    __slots__ = ("stat",)
    STAT_FIELD_NUMBER: _ClassVar[int]
    stat: FileStat
    def __init__(self, stat: _Optional[_Union[FileStat, _Mapping]] = ...) -> None: ...

class ListDirectoryRequest(_message.Message):
    __slots__ = ("session_id", "path", "recursive")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    recursive: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., recursive: _Optional[bool] = ...) -> None: ...

class ListDirectoryResponse(_message.Message):
    __slots__ = ("entries", "unreadable")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DirectoryEntry]
    unreadable: int
    def __init__(self, entries: _Optional[_Iterable[_Union[DirectoryEntry, _Mapping]]] = ..., unreadable: _Optional[int] = ...) -> None: ...

class DirectoryEntry(_message.Message):
    __slots__ = ("path", "raw_path", "stat")
    PATH_FIELD_NUMBER: _ClassVar[int]
    RAW_PATH_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    path: str
    raw_path: bytes
    stat: FileStat
    def __init__(self, path: _Optional[str] = ..., raw_path: _Optional[bytes] = ..., stat: _Optional[_Union[FileStat, _Mapping]] = ...) -> None: ...

class MakeDirectoryRequest(_message.Message):
    __slots__ = ("session_id", "path", "epoch", "mode")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    epoch: int
    mode: int
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., epoch: _Optional[int] = ..., mode: _Optional[int] = ...) -> None: ...

class MakeDirectoryResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: _Optional[bool] = ...) -> None: ...

class MovePathRequest(_message.Message):
    __slots__ = ("session_id", "source", "target", "epoch", "replace")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    source: str
    target: str
    epoch: int
    replace: bool
    def __init__(self, session_id: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., epoch: _Optional[int] = ..., replace: _Optional[bool] = ...) -> None: ...

class MovePathResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemovePathRequest(_message.Message):
    __slots__ = ("session_id", "path", "epoch", "recursive")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    path: str
    epoch: int
    recursive: bool
    def __init__(self, session_id: _Optional[str] = ..., path: _Optional[str] = ..., epoch: _Optional[int] = ..., recursive: _Optional[bool] = ...) -> None: ...

class RemovePathResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: bool
    def __init__(self, removed: _Optional[bool] = ...) -> None: ...
