from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[Code]
    NOT_FOUND: _ClassVar[Code]
    EXISTS: _ClassVar[Code]
    VERSION_CONFLICT: _ClassVar[Code]
    NOT_EMPTY: _ClassVar[Code]
    SESSION_EXPIRED: _ClassVar[Code]
    INVALID: _ClassVar[Code]
    FAILED: _ClassVar[Code]
    REPLACED: _ClassVar[Code]
OK: Code
NOT_FOUND: Code
EXISTS: Code
VERSION_CONFLICT: Code
NOT_EMPTY: Code
SESSION_EXPIRED: Code
INVALID: Code
FAILED: Code
REPLACED: Code

class Outcome(_message.Message):
    __slots__ = ("code", "message", "revision")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    code: Code
    message: str
    revision: int
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., message: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("timeout_ms", "process")
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    timeout_ms: int
    process: str
    def __init__(self, timeout_ms: _Optional[int] = ..., process: _Optional[str] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("outcome", "session")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    session: SessionRequest
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ..., session: _Optional[_Union[SessionRequest, _Mapping]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("session_id", "password")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    password: bytes
    def __init__(self, session_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class NewNode(_message.Message):
    __slots__ = ("path", "data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Create(_message.Message):
    __slots__ = ("node", "ephemeral", "sequential")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENTIAL_FIELD_NUMBER: _ClassVar[int]
    node: NewNode
    ephemeral: bool
    sequential: bool
    def __init__(self, node: _Optional[_Union[NewNode, _Mapping]] = ..., ephemeral: _Optional[bool] = ..., sequential: _Optional[bool] = ...) -> None: ...

class CreateAll(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NewNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NewNode, _Mapping]]] = ...) -> None: ...

class Read(_message.Message):
    __slots__ = ("path", "watch")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    path: str
    watch: int
    def __init__(self, path: _Optional[str] = ..., watch: _Optional[int] = ...) -> None: ...

class ReadEach(_message.Message):
    __slots__ = ("paths",)
    PATHS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, paths: _Optional[_Iterable[str]] = ...) -> None: ...

class Write(_message.Message):
    __slots__ = ("path", "data", "version", "creation")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    version: int
    creation: int
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., version: _Optional[int] = ..., creation: _Optional[int] = ...) -> None: ...

class Delete(_message.Message):
    __slots__ = ("path", "version", "creation")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    path: str
    version: int
    creation: int
    def __init__(self, path: _Optional[str] = ..., version: _Optional[int] = ..., creation: _Optional[int] = ...) -> None: ...

class Sync(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("session", "create", "create_all", "get", "exists", "children", "set", "delete", "sync", "get_each")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CREATE_ALL_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    GET_EACH_FIELD_NUMBER: _ClassVar[int]
    session: SessionRequest
    create: Create
    create_all: CreateAll
    get: Read
    exists: Read
    children: Read
    set: Write
    delete: Delete
    sync: Sync
    get_each: ReadEach
    def __init__(self, session: _Optional[_Union[SessionRequest, _Mapping]] = ..., create: _Optional[_Union[Create, _Mapping]] = ..., create_all: _Optional[_Union[CreateAll, _Mapping]] = ..., get: _Optional[_Union[Read, _Mapping]] = ..., exists: _Optional[_Union[Read, _Mapping]] = ..., children: _Optional[_Union[Read, _Mapping]] = ..., set: _Optional[_Union[Write, _Mapping]] = ..., delete: _Optional[_Union[Delete, _Mapping]] = ..., sync: _Optional[_Union[Sync, _Mapping]] = ..., get_each: _Optional[_Union[ReadEach, _Mapping]] = ...) -> None: ...

class Stat(_message.Message):
    __slots__ = ("version", "child_version", "ctime_ms", "owner", "children", "creation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHILD_VERSION_FIELD_NUMBER: _ClassVar[int]
    CTIME_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int
    creation: int
    def __init__(self, version: _Optional[int] = ..., child_version: _Optional[int] = ..., ctime_ms: _Optional[int] = ..., owner: _Optional[int] = ..., children: _Optional[int] = ..., creation: _Optional[int] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("data", "stat")
    DATA_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    stat: Stat
    def __init__(self, data: _Optional[bytes] = ..., stat: _Optional[_Union[Stat, _Mapping]] = ...) -> None: ...

class ExecuteReply(_message.Message):
    __slots__ = ("outcome", "path", "data", "stat", "names", "found")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    path: str
    data: bytes
    stat: Stat
    names: _containers.RepeatedScalarFieldContainer[str]
    found: _containers.RepeatedCompositeFieldContainer[Found]
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ..., stat: _Optional[_Union[Stat, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., found: _Optional[_Iterable[_Union[Found, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("watches", "all_watches")
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    ALL_WATCHES_FIELD_NUMBER: _ClassVar[int]
    watches: _containers.RepeatedScalarFieldContainer[int]
    all_watches: bool
    def __init__(self, watches: _Optional[_Iterable[int]] = ..., all_watches: _Optional[bool] = ...) -> None: ...
