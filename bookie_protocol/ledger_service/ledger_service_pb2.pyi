from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DigestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_TYPE_UNSPECIFIED: _ClassVar[DigestType]
    CRC32: _ClassVar[DigestType]
    MAC: _ClassVar[DigestType]
    CRC32C: _ClassVar[DigestType]
    DUMMY: _ClassVar[DigestType]
DIGEST_TYPE_UNSPECIFIED: DigestType
CRC32: DigestType
MAC: DigestType
CRC32C: DigestType
DUMMY: DigestType

class CreateRequest(_message.Message):
    __slots__ = ("ensemble_size", "write_quorum", "ack_quorum", "password", "digest_type", "custom_metadata", "ledger_id")
    class CustomMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_METADATA_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    password: bytes
    digest_type: DigestType
    custom_metadata: _containers.ScalarMap[str, bytes]
    ledger_id: int
    def __init__(self, ensemble_size: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., password: _Optional[bytes] = ..., digest_type: _Optional[_Union[DigestType, str]] = ..., custom_metadata: _Optional[_Mapping[str, bytes]] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class CreateResponse(_message.Message):
    __slots__ = ("metadata",)
    METADATA_FIELD_NUMBER: _ClassVar[int]
    metadata: LedgerMetadata
    def __init__(self, metadata: _Optional[_Union[LedgerMetadata, _Mapping]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("create", "existing", "entries")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    create: CreateRequest
    existing: ExistingWriter
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, create: _Optional[_Union[CreateRequest, _Mapping]] = ..., existing: _Optional[_Union[ExistingWriter, _Mapping]] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ExistingWriter(_message.Message):
    __slots__ = ("ledger_id", "password", "keep_open")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    KEEP_OPEN_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    keep_open: bool
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., keep_open: _Optional[bool] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("ledger_id", "last_entry_id", "closed")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    last_entry_id: int
    closed: bool
    def __init__(self, ledger_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "digest_type", "first_entry_id", "last_entry_id", "max_batch_entries", "max_batch_bytes", "recover")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECOVER_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    digest_type: DigestType
    first_entry_id: int
    last_entry_id: int
    max_batch_entries: int
    max_batch_bytes: int
    recover: bool
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., digest_type: _Optional[_Union[DigestType, str]] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., max_batch_entries: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., recover: _Optional[bool] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "digest_type", "first_entry_id", "max_batch_entries", "max_batch_bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    digest_type: DigestType
    first_entry_id: int
    max_batch_entries: int
    max_batch_bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., digest_type: _Optional[_Union[DigestType, str]] = ..., first_entry_id: _Optional[int] = ..., max_batch_entries: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("first_entry_id", "entries", "last_add_confirmed", "ledger_closed")
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_CLOSED_FIELD_NUMBER: _ClassVar[int]
    first_entry_id: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    last_add_confirmed: int
    ledger_closed: bool
    def __init__(self, first_entry_id: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ..., last_add_confirmed: _Optional[int] = ..., ledger_closed: _Optional[bool] = ...) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("ledger_id", "password", "digest_type")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    digest_type: DigestType
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ..., digest_type: _Optional[_Union[DigestType, str]] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("ledger_id", "password")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("ledger_id", "password")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    password: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., password: _Optional[bytes] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("ledger_ids",)
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class LedgerMetadata(_message.Message):
    __slots__ = ("ledger_id", "state", "last_entry_id", "length", "ensemble_size", "write_quorum", "ack_quorum", "digest_type", "segments", "custom_metadata", "created_ms")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LedgerMetadata.State]
        OPEN: _ClassVar[LedgerMetadata.State]
        IN_RECOVERY: _ClassVar[LedgerMetadata.State]
        CLOSED: _ClassVar[LedgerMetadata.State]
    STATE_UNSPECIFIED: LedgerMetadata.State
    OPEN: LedgerMetadata.State
    IN_RECOVERY: LedgerMetadata.State
    CLOSED: LedgerMetadata.State
    class Segment(_message.Message):
        __slots__ = ("first_entry_id", "bookies")
        FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
        BOOKIES_FIELD_NUMBER: _ClassVar[int]
        first_entry_id: int
        bookies: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, first_entry_id: _Optional[int] = ..., bookies: _Optional[_Iterable[str]] = ...) -> None: ...
    class CustomMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    state: LedgerMetadata.State
    last_entry_id: int
    length: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    segments: _containers.RepeatedCompositeFieldContainer[LedgerMetadata.Segment]
    custom_metadata: _containers.ScalarMap[str, bytes]
    created_ms: int
    def __init__(self, ledger_id: _Optional[int] = ..., state: _Optional[_Union[LedgerMetadata.State, str]] = ..., last_entry_id: _Optional[int] = ..., length: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., digest_type: _Optional[_Union[DigestType, str]] = ..., segments: _Optional[_Iterable[_Union[LedgerMetadata.Segment, _Mapping]]] = ..., custom_metadata: _Optional[_Mapping[str, bytes]] = ..., created_ms: _Optional[int] = ...) -> None: ...
