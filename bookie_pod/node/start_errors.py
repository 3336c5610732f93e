"""The errors of a failed start: one line with the remedy, and the exit code that belongs to it.

Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookie_pod.config.model import BookieConfig
from bookie_protocol.errors import (
    ExitCode,
    InvalidConfiguration,
    MetadataError,
    MetadataNotFound,
    MetadataUnavailable,
    ServerStartFailed,
    StorageFault,
)


class InvalidStart(ServerStartFailed):
    """A storage fault while starting: exit code of a bookie exception."""

    exit_code = ExitCode.BOOKIE_EXCEPTION


class MetadataNotReached(ServerStartFailed):
    """The metadata service does not answer: the supervisor of the process should try again.

    It says nothing about the bookie's directories, so it has another exit code than a cookie that forbids the start.
    """

    exit_code = ExitCode.METADATA_SESSION_EXPIRED


@contextmanager
def as_start_errors(config: BookieConfig) -> Iterator[None]:
    """Turn the faults of the parts that start into `StartupError`s."""
    try:
        yield
    except MetadataUnavailable as error:
        raise MetadataNotReached(
            f"the metadata service does not answer: {_with_remedy(str(error), config.metadata.service_uri)}"
        ) from error
    except MetadataError as error:
        raise ServerStartFailed(f"the metadata service cannot be used: {error}") from error
    except StorageFault as error:
        raise InvalidStart(str(error)) from error
    except OSError as error:
        raise InvalidStart(
            f"cannot use {error.filename or 'a file'}: {error.strerror or error}; check disk and permissions"
        ) from error


@contextmanager
def as_no_cluster(config: BookieConfig) -> Iterator[None]:
    """Turns "it is not there", said of the cluster, into what ends a start."""
    try:
        yield
    except MetadataNotFound as error:
        uri = config.metadata.service_uri
        raise InvalidStart(f"{uri} holds no cluster; make one with `bookie cluster init {uri}`") from error


def required_metadata_uri(config: BookieConfig) -> str:
    """Return the metadata service to use. Raises InvalidConfiguration when none is named."""
    if config.metadata.service_uri is None:
        raise InvalidConfiguration("metadataServiceUri is not set: name the cluster's metadata service")
    return config.metadata.service_uri


def _with_remedy(error: str, uri: str | None) -> str:
    """Return the error with the metadata URI to check.

    A failed connection names the key, but not its value; the error of a later request has neither.
    """
    if "metadataServiceUri" in error:
        return error.replace("metadataServiceUri", f"metadataServiceUri={uri}", 1)
    return f"{error}; check that it runs, and metadataServiceUri={uri}"
