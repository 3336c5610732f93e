"""Starting telemetry, if the configuration asks for it."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from typing import TYPE_CHECKING, Final

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.telemetry import TelemetryConfig
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.extras import needed

if TYPE_CHECKING:
    from bookie_pod.telemetry.otlp import Telemetry

_KEY: Final = "otelEndpoint"
_HEADERS: Final = (
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
)
_HEADER: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+[ \t]*=[ !#-+\--:<-\[\]-~\t]*", re.ASCII)
"""A header as the SDK reads it."""


async def start_telemetry(config: TelemetryConfig, registry: Registry, service: str, instance: str) -> Telemetry | None:
    """Return what runs, to be stopped; None: nothing is configured. `service` and `instance` name this process.

    Raises InvalidConfiguration."""
    if config.endpoint is None:
        return None
    return await asyncio.to_thread(_start, config, registry, service, instance)


def own_name(config: BookieConfig) -> str:
    """Return the name of this process among those of its service: the bookie's id, or that of the host."""
    network = config.network
    return network.bookie_id or network.advertised_address or socket.gethostname()


def check_telemetry(config: TelemetryConfig) -> None:
    """Raise `InvalidConfiguration` if telemetry could not start with this configuration."""
    if config.endpoint is None:
        return
    for name in _HEADERS:
        _check_headers(name, os.environ.get(name, ""))
    needed("bookie_pod.telemetry.otlp", "otel", _KEY)


def _check_headers(name: str, text: str) -> None:
    """Raise `InvalidConfiguration`, which does not show them: the SDK would log each header that it cannot read."""
    for number, header in enumerate(text.split(","), 1):
        if header.strip() and _HEADER.fullmatch(header.strip()) is None:
            raise InvalidConfiguration(
                f"{name}: header {number} does not look like name=value; commas separate headers, and other characters"
                ' than printable ASCII, and the characters , ; " and \\, are written as in URLs (%2C)'
            )


def _start(config: TelemetryConfig, registry: Registry, service: str, instance: str) -> Telemetry:
    check_telemetry(config)
    from bookie_pod.telemetry.otlp import Telemetry

    return Telemetry(config, registry, service, instance)
