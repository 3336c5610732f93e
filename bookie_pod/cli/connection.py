"""How the commands that use a cluster reach it: `--metadata`, `--config`, `--client`.

`connects` gives a command one `Connection` in place of these options. Nothing heavy is loaded before `run`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from bookie_pod.cli.quiet import quiet_grpc
from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable

if TYPE_CHECKING:
    from bookie_client.client import Client
    from bookie_client.options import ClientOptions
    from bookie_protocol.metadata_service.interface import MetadataService

T = TypeVar("T")
URI_VARIABLE: Final = "BK_metadataServiceUri"
SESSION_SECONDS: Final = 10.0


class Cluster(NamedTuple):
    """What a command works with; both are closed for it."""

    client: Client
    service: MetadataService


class Connection:
    """Where the cluster is, and the options of the client."""

    def __init__(self, uri: str | None, file: str | None, settings: tuple[str, ...], timeout: float) -> None:
        self._uri = uri
        self._file = file
        self._settings = settings
        self._timeout = timeout

    def uri(self) -> str:
        """The metadata service's URI. Raises `InvalidConfiguration` when nobody named one."""
        if self._uri:
            return self._uri
        uri = None
        if self._file or URI_VARIABLE in os.environ:
            from bookie_pod.config.load import load_config

            uri = load_config(self._file).metadata.service_uri
        if uri is None:
            raise InvalidConfiguration(
                "no cluster is named: give --metadata URI, set BK_metadataServiceUri, or give --config FILE"
            )
        return uri

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]], defaults: Mapping[str, object] | None = None) -> T:
        """Connect, do the work on an event loop of its own and disconnect.

        `defaults` are client options that `--client` wins over. SIGTERM cancels the work.
        """
        quiet_grpc()
        import asyncio

        import uvloop

        from bookie_pod import logs

        logs.configure("console", "warning")
        uri, options = self.uri(), client_options(self._settings, defaults or {})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._run(work, uri, options))

    async def _run(self, work: Callable[[Cluster], Coroutine[Any, Any, T]], uri: str, options: ClientOptions) -> T:
        from bookie_client.client import Client
        from bookie_pod.cli.signals import end_with_sigterm
        from bookie_protocol.metadata_service.uri import open_metadata_service

        end_with_sigterm()
        try:
            service = await open_metadata_service(uri, timeout=self._timeout)
        except MetadataUnavailable as error:
            raise MetadataUnavailable(f"the metadata service {uri} does not answer: {error}; does it run?") from error
        try:
            async with Client(service, options) as client:
                return await work(Cluster(client, service))
        finally:
            await service.close()


def connects(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and passes the command a `Connection` as its first argument."""

    @click.option("-m", "--metadata", "uri", metavar="URI", help=f"Metadata service. [environment: {URI_VARIABLE}]")
    @click.option(
        "-c",
        "--config",
        "configuration_file",
        envvar="BOOKIE_CONF",
        metavar="FILE",
        help="Take it from this properties file. [environment: BOOKIE_CONF]",
    )
    @click.option(
        "--client",
        "settings",
        multiple=True,
        metavar="OPTION=VALUE",
        help="Set an option of the client (ClientOptions).",
    )
    @click.option(
        "--timeout", default=SESSION_SECONDS, show_default=True, help="Seconds to wait for the metadata service."
    )
    @functools.wraps(command)
    def connected(
        *arguments: Any,
        uri: str | None,
        configuration_file: str | None,
        settings: tuple[str, ...],
        timeout: float,
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
            raise InvalidConfiguration(
                f"--client {setting}: must be OPTION=VALUE with one of {', '.join(sorted(fields))}"
            )
        values[name] = _value(setting, fields[name], text)
    return ClientOptions(**values)  # type: ignore[arg-type]


def _value(setting: str, kind: str, text: str) -> object:
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
    except (KeyError, ValueError):
        pass
    raise InvalidConfiguration(f"--client {setting}: {text!r} is no {kind}")
