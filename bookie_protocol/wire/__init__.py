"""Wire codecs: bytes in, messages out, no I/O.

framing        length-prefixed frames
v2             the binary protocol (versions 0 to 2), its words and structs
v3             the protobuf protocol (version 3) through generated messages, and telling v3 from v2
v3_hot         its adds and reads decoded without message objects, by shapes
v3_encode      its adds, reads and their answers encoded so
varint         base-128 numbers of protobuf
auth           authentication messages, and what an authentication plug-in implements
availability   the answer of GET_LIST_OF_ENTRIES_OF_LEDGER
bookkeeper.proto, bookkeeper_pb2, generate   the messages of version 3

The hot decoders give the entry's own ids (storage goes by those) and answer with the envelope's. Flags are those of
the binary protocol; `DEFERRED_SYNC` (0x10000) lies beyond its 16 bits.
"""
