"""The connection of commands to a cluster: `--metadata`, `--config`, `--client`.

With a configuration, of a file or of the environment, its login to ZooKeeper, its TLS and its placement apply too,
whichever option names the cluster. `connects` gives a command one `Connection` in place of these options. Nothing heavy
is loaded before `run`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from bookie_pod.cli.bookie_api import URI_VARIABLE
from bookie_pod.cli.exit_codes import Terminated
from bookie_pod.cli.local_clusters import the_one
from bookie_pod.cli.options import Seconds, config_option
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable
from bookie_protocol.quiet import quiet_grpc, quiet_kazoo
from bookie_protocol.traffic_class import TrafficClass

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.options import ClientOptions
    from bookie_client.placement.options import PlacementOptions
    from bookie_pod.config.model import BookieConfig
    from bookie_protocol.metadata_service.tree.service import MetadataService

T = TypeVar("T")
_OF_THE_METADATA: Final = ("BK_metadataService", "BK_zkAuthCredentialsPath")
"""Prefixes of variables that name the metadata service, and the way to reach it."""


class Cluster(NamedTuple):
    """The client and metadata service of a command; both are closed for it."""

    client: Client
    service: MetadataService


class Connection:
    """The cluster of a command, and the options of its client."""

    def __init__(
        self, uri: str | None, file: str | None, settings: tuple[str, ...], timeout: float | None = None
    ) -> None:
        """`timeout`: seconds; None: the configuration's `zkTimeout`."""
        self._uri = uri
        self._file = file
        self._settings = settings
        self._timeout = timeout

    @functools.cached_property
    def configuration(self) -> BookieConfig:
        """The configuration that counts; defaults if there is none. Raises `InvalidConfiguration`."""
        from bookie_pod.config.load import load_config

        given = self._file or any(name.startswith(_OF_THE_METADATA) for name in os.environ)
        return load_config(self._file) if given else load_config(environ={})

    def uri(self) -> str:
        """Return the metadata service's URI: of an option or the configuration, else that of the one cluster that
        `bookie standalone` runs here. Raises `InvalidConfiguration` if there is none, or several."""
        uri = self._uri or self.configuration.metadata.service_uri
        if uri is not None:
            return uri
        found = the_one(f"name one with --metadata URI, or set {URI_VARIABLE}")
        if found is None:
            raise InvalidConfiguration(
                "no cluster is named, and `bookie standalone` does not run here: give --metadata URI, set"
                f" {URI_VARIABLE}, or give --config FILE"
            )
        return found.metadata_service

    def sets(self, option: str) -> bool:
        """Return True if the command line sets this option of the client."""
        return any(setting.partition("=")[0] == option for setting in self._settings)

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]], defaults: Mapping[str, object] | None = None) -> T:
        """Connect, do the work on an event loop of its own and disconnect.

        `defaults` are client options that `--client` wins over. Ctrl-C and SIGTERM cancel the work; raises
        `click.Abort` and `Terminated` then.
        """
        quiet_grpc()
        quiet_kazoo()
        import asyncio

        import uvloop

        from bookie_pod import logs

        logs.configure("console", "warning")
        uri, options = self.uri(), client_options(self._settings, {**self._configured(), **(defaults or {})})
        placement = self._placement()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                return runner.run(self._run(work, uri, options, placement))
            except KeyboardInterrupt:
                raise click.Abort from None  # of which click prints nothing
            except asyncio.CancelledError:
                raise Terminated from None

    async def _run(
        self,
        work: Callable[[Cluster], Coroutine[Any, Any, T]],
        uri: str,
        options: ClientOptions,
        placement: PlacementOptions,
    ) -> T:
        from bookie_client.client import Client
        from bookie_pod.cli.exit_codes import end_with_sigterm
        from bookie_pod.node.metadata import open_metadata

        end_with_sigterm()
        metadata = self.configuration.metadata
        if self._timeout is not None:
            metadata = replace(metadata, zk_timeout_ms=max(1, round(self._timeout * 1000)))
        try:
            service = await open_metadata(metadata, uri)
        except MetadataUnavailable as error:
            raise MetadataUnavailable(f"the metadata service {uri} does not answer: {error}") from error
        try:
            async with Client(service, options, placement=placement) as client:
                return await work(Cluster(client, service))
        finally:
            await service.close()

    def _configured(self) -> dict[str, object]:
        """Return the configuration's options for connections to bookies."""
        from bookie_pod.client_options import client_authentication, tls_options

        config = self.configuration
        configured: dict[str, object] = {"tls": tls_options(config.tls), "auth": client_authentication(config.auth)}
        if "nettyMaxFrameSizeBytes" in config.set_keys:
            configured["max_frame_size"] = config.network.max_frame_size_bytes
        return configured

    def _placement(self) -> PlacementOptions:
        """Return the placement options that gateway and auto-recovery of this configuration use. Raises
        `InvalidConfiguration`."""
        from bookie_pod.client_options import client_placement

        config = self.configuration
        placement = client_placement(config)
        if placement.policy != "local":
            return placement
        # The configuration is that of a bookie: the one that the policy means.
        from bookie_pod.node.identity.bookie_id import derive_bookie_id

        local = derive_bookie_id(config.network)
        return replace(placement, local_bookie=local)


def connects(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and passes the command a `Connection` as its first argument."""

    @click.option(
        "-m",
        "--metadata",
        "uri",
        metavar="URI",
        help=f"Metadata service. [environment: {URI_VARIABLE}; default: that of `bookie standalone` on this machine]",
    )
    @config_option("Take it from this properties file, and login, TLS and placement with it.", "configuration_file")
    @click.option(
        "--client",
        "settings",
        multiple=True,
        metavar="OPTION=VALUE",
        help="Set an option of the client (ClientOptions).",
    )
    @click.option(
        "--timeout",
        type=Seconds(above=True),
        help="Seconds to wait for the metadata service. [default: zkTimeout, 10 s]",
    )
    @functools.wraps(command)
    def connected(
        *arguments: Any,
        uri: str | None,
        configuration_file: str | None,
        settings: tuple[str, ...],
        timeout: float | None,
        **others: Any,
    ) -> Any:
        return command(Connection(uri, configuration_file, settings, timeout), *arguments, **others)

    return connected


def client_options(settings: tuple[str, ...], defaults: Mapping[str, object]) -> ClientOptions:
    """The options that `name=value` texts describe. Raises `InvalidConfiguration`, or `BadRequest` for a value
    that is out of its range."""
    import dataclasses

    from bookie_client.options import ClientOptions

    fields = {field.name: str(field.type) for field in dataclasses.fields(ClientOptions)}
    values = dict(defaults)
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator or name not in fields:
            given = f"--client {name}" if separator else "--client"  # a word alone may be a secret
            raise InvalidConfiguration(f"{given}: must be OPTION=VALUE with one of {', '.join(sorted(fields))}")
        values[name] = _value(name, fields[name], text)
    return ClientOptions(**values)  # type: ignore[arg-type]


def _value(name: str, kind: str, text: str) -> object:
    if text.lower() == "none" and "None" in kind:
        return None
    try:
        match kind.removesuffix(" | None"):
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "str":
                return text
            case "TrafficClass":
                return TrafficClass(text.lower())
    except (KeyError, ValueError):
        pass
    raise InvalidConfiguration(f"--client {name}: the value is not of type {kind}")
