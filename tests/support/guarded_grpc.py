"""A gRPC port with TLS and a token, for `bookie standalone` and its clients."""

from __future__ import annotations

from pathlib import Path

import grpc

from tests.support.certificates import Certificates


class GuardedGrpc:
    """Makes the files in `folder`."""

    def __init__(self, folder: Path, *, client_certificates: bool = False) -> None:
        self.certificates = Certificates(folder).make_all()
        self.certificates.make_named("server", "IP:127.0.0.1")
        self.authority = folder / "authority.pem"
        self.token = "kept-secret-of-the-port"
        tokens = folder / "grpc-tokens"
        tokens.write_text(self.token + "\n")
        self.keys = {
            "grpcServerTlsEnable": "true",
            "grpcServerCertificatePath": str(folder / "server.pem"),
            "grpcServerKeyPath": str(folder / "server.key"),
            "grpcServerTrustStorePath": str(self.authority),
            "grpcServerTlsClientAuthentication": str(client_certificates).lower(),
            "grpcServerAuthTokenFile": str(tokens),
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        """For `bookie standalone`."""
        return tuple(word for key, value in self.keys.items() for word in ("--set", f"{key}={value}"))

    def credentials(self, *, token: str | None = None, certificate: str | None = None) -> grpc.ChannelCredentials:
        """For a channel: what a client trusts, and what it shows."""
        folder = self.certificates.folder
        key, chain = None, None
        if certificate is not None:
            key, chain = (folder / f"{certificate}.key").read_bytes(), (folder / f"{certificate}.pem").read_bytes()
        channel = grpc.ssl_channel_credentials(self.authority.read_bytes(), key, chain)
        if token is None:
            return channel
        return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(token))
