"""When a process that is no bookie gives up its session with the metadata service: it ends, to be started anew.

The driver opens another session after one that expired, so usually nothing is to be done. If no connection comes back
although the metadata service takes new ones, something is wrong with this process. While the service takes none,
waiting is all there is to do.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie_pod.config.model import BookieConfig
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.start_errors import required_metadata_uri
from bookie_protocol.errors import ExitCode, InvalidConfiguration, MetadataError, StartupError
from bookie_protocol.metadata_service.interface import MetadataService, SessionState

PROBE_PAUSE_S: Final = 10.0
"""Between two looks at a session that is away."""
PATIENCE_S: Final = 60.0
"""How long a session may be away before anybody asks why."""


class SessionNotRenewed(StartupError):
    """The session with the metadata service ended, and this process could not open another one."""

    exit_code = ExitCode.METADATA_SESSION_EXPIRED

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}, although it takes new connections: ending, to be started anew")


async def watch_session(config: BookieConfig, metadata: MetadataService) -> None:
    """Until cancelled. Raises `SessionNotRenewed`."""
    loop = asyncio.get_running_loop()
    connected_at = loop.time()
    while True:
        await asyncio.sleep(PROBE_PAUSE_S)
        if metadata.session.state is SessionState.CONNECTED:
            connected_at = loop.time()
        elif (away := loop.time() - connected_at) >= PATIENCE_S and await others_get_sessions(config, metadata):
            raise SessionNotRenewed(f"no connection to the metadata service for {away:.0f} s")


async def others_get_sessions(config: BookieConfig, metadata: MetadataService) -> bool:
    """Whether a new connection works, and that of `metadata` still does not."""
    try:
        another = await open_metadata(config.metadata, required_metadata_uri(config))
    except (MetadataError, InvalidConfiguration, OSError):
        return False
    try:
        await another.cluster.exists()
    except MetadataError:
        return False
    finally:
        await another.close()
    return metadata.session.state is not SessionState.CONNECTED
