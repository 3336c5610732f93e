"""All checks of `bookie doctor`, one after the other."""

from __future__ import annotations

import asyncio

from bookie_pod import logs
from bookie_pod.cli.doctor.certificates import certificate_findings
from bookie_pod.cli.doctor.disks import disk_findings
from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.cli.doctor.machine import machine_findings
from bookie_pod.cli.doctor.ports import port_findings
from bookie_pod.cli.doctor.services import metadata_findings
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.dry_start import refusals
from bookie_protocol.quiet import quiet_grpc, quiet_kazoo


def all_findings(config: BookieConfig, *, measure: bool) -> list[Finding]:
    """Check everything; `measure` also writes to the disks. Not on a thread that runs an event loop."""
    logs.configure("console", "error")
    quiet_grpc()
    quiet_kazoo()
    refused = [Finding("configuration", State.PROBLEM, text, "correct it") for text in refusals(config)]
    return [
        *(refused or [Finding("configuration", State.OK, "a bookie starts with it")]),
        *machine_findings(config),
        *port_findings(config),
        *disk_findings(config, measure=measure),
        *certificate_findings(config),
        *asyncio.run(metadata_findings(config)),
    ]
