"""Blocks that others compressed: Pulsar's messages and metadata, DistributedLog's entries.

Pure; any thread. pyarrow, which has the codecs, is imported only where a block is uncompressed: only those who meet one
need it.
"""

from __future__ import annotations


def decompressed(codec: str, block: bytes, size: int) -> bytes:
    """A whole block of `lz4_raw`, `snappy` or `zstd` as the `size` bytes that it stands for. Takes at most twice their
    memory; the caller bounds `size`. Raises `ValueError`: it stands for more or for fewer bytes, or is damaged; and
    `ImportError` without pyarrow."""
    import pyarrow as pa

    decoder = pa.Codec(codec)
    try:
        plain = bytes(decoder.decompress(block, decompressed_size=size, asbytes=True))
    except (OSError, ValueError) as error:
        raise ValueError(f"no {size} bytes of {codec}: {error}") from None
    if not size:
        return plain
    # When a block ends early, pyarrow fills up with whatever lay in memory, without a word, but what a buffer is too
    # small for is an error. So exactly `size` bytes are those that do not fit into one byte less.
    try:
        decoder.decompress(block, decompressed_size=size - 1)
    except (OSError, ValueError):
        return plain
    raise ValueError(f"fewer than {size} bytes of {codec}")
