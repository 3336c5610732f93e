"""A gRPC channel to a metadata service that has one or several servers, of which one is talked to at a time.

Invariants
- Proxies of the environment are not used: the URI names the servers themselves.
- With TLS a server's certificate must name the host that is connected to. Files are read again for new channels.
- What is under way on a channel that is given up ends in `ConnectionLost`, and cancels no waiting caller.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.options import MetadataTls
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.shown import one_line

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

_LONGEST_DETAILS: Final = 500
_TROUBLES_OF_TLS: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not signed by an authority of metadataServiceTrustStorePath, or is not valid now",
    ),
    ("Hostname Verification", "its certificate does not name the host that metadataServiceUri names"),
    ("WRONG_VERSION_NUMBER", "it does not use TLS, and metadataServiceTlsEnable=true is set"),
    ("Unwrap failed", "it demands a certificate, or rejects the one of metadataServiceCertificatePath"),
    (": Socket closed", "it hung up; if it uses TLS, see metadataServiceTlsEnable and metadataServiceCertificatePath"),
)
"""Parts of gRPC's texts, and what they mean. Servers in Go reject a certificate behind the handshake, others in it."""

_opened_in: int | None = None
"""The process that opened the first channel of this one, or of the one that it was forked from."""


class ServiceChannel:
    """`targets` are host:port, in the order in which they are tried; `service` is how messages call it. `stub`: with a
    channel, the calls that it takes."""

    def __init__(
        self, service: str, targets: Sequence[str], tls: MetadataTls | None, stub: Callable[[grpc.aio.Channel], Any]
    ) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        self._service = service
        self._targets = tuple(targets)
        self._number = 0
        self._tls = tls
        self._make_stub = stub
        self._silent = False  # what was asked last was not answered at all
        self._open(0)

    @property
    def stub(self) -> Any:
        """Another one after a `reconnect`."""
        return self._stub

    @property
    def target(self) -> str:
        return self._targets[self._number]

    def heard(self) -> None:
        """There was an answer."""
        self._silent = False

    def unheard(self, code: grpc.StatusCode) -> None:
        """Note the code that gRPC reported instead."""
        self._silent = code is grpc.StatusCode.DEADLINE_EXCEEDED

    def unanswered(self, error: grpc.aio.AioRpcError) -> ConnectionLost:
        """Note that this came in the place of an answer, and return what it means if the service did not say it."""
        error.__traceback__ = None  # its frames would keep the call, with which a closed channel goes on connecting
        code, details = error.code(), one_line(error.details() or "", _LONGEST_DETAILS)
        self.unheard(code)
        meaning = next((f"{meaning}: " for text, meaning in _TROUBLES_OF_TLS if text in details), "")
        return ConnectionLost(f"no answer from {self._service} at {self.target}: {meaning}{code.name} {details}")

    def given_up(self) -> BaseException:
        """Return the error for a `CancelledError` that gRPC raised: it cancels the calls on a closed channel."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return ConnectionLost(f"the connection to {self._service} at {self.target} was given up")

    async def reconnect(self) -> None:
        """Take the next server; where there is one only a new channel, if it was silent or files of TLS were exchanged:
        gRPC itself connects again to one that went away."""
        try:
            if len(self._targets) > 1 or self._silent or self._files != self._identity_of_files():
                old = self._channel
                self._open((self._number + 1) % len(self._targets))
                self._silent = False
                await old.close()
        except (OSError, InvalidConfiguration):
            pass  # the files are being exchanged: until they are good, the last ones stay in use

    async def close(self) -> None:
        await self._channel.close()

    def _open(self, number: int) -> None:
        """Raises `InvalidConfiguration`: then everything is as before."""
        _check_process()
        target = self._targets[number]
        if self._tls is None:
            self._files = self._identity_of_files()
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            # gRPC itself tells of bad files by silence, and with an empty one trusts the authorities of the web.
            self._tls.check()
            try:
                files, credentials = self._identity_of_files(), _credentials(self._tls)
            except OSError as error:  # it went away since
                raise InvalidConfiguration(f"TLS to {self._service}: {error}") from error
            self._channel = grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
            self._files = files
        self._number = number
        self._stub = self._make_stub(self._channel)

    def _identity_of_files(self) -> tuple[tuple[int, int, int], ...]:
        """Return the identity of the TLS files: another one when a file was replaced. Raises OSError."""
        tls = self._tls or MetadataTls()
        found = [os.stat(path) for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path is not None]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def grpc_target(host: str, port: int) -> str:
    """gRPC knows names in ASCII alone."""
    return f"{host if host.isascii() else host.encode('idna').decode()}:{port}"


def _check_process() -> None:
    """gRPC's threads do not exist in a forked child: a channel there would never connect. Raises
    `InvalidConfiguration`."""
    global _opened_in
    _opened_in = _opened_in or os.getpid()
    if _opened_in != os.getpid():
        raise InvalidConfiguration(
            f"process {os.getpid()} was forked from process {_opened_in}, which has used gRPC, and gRPC does not work"
            " in such a child: an embedded://, etcd:// or oxia:// metadata service cannot be reached from here; start"
            ' the child with the method "spawn" or "forkserver" of multiprocessing, or fork before the first client is'
            " started"
        )


def _credentials(tls: MetadataTls) -> grpc.ChannelCredentials:
    """Raises OSError."""
    found = [
        None if path is None else Path(path).read_bytes() for path in (tls.ca_file, tls.key_file, tls.certificate_file)
    ]
    return grpc.ssl_channel_credentials(*found)
