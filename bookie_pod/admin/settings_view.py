"""The configuration as the admin API shows and changes it: in memory, until the next start.

Invariants
- What does not make a valid configuration changes nothing.
- Garbage collection takes over its rates, thresholds and intervals at once; everything else was read at the start.

Threads: event loop; a changed configuration is checked on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from bookie_pod.config.load import read_config
from bookie_pod.config.model import BookieConfig
from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)


class Settings:
    """`SettingsPort`. `apply` hears of every change."""

    def __init__(self, config: BookieConfig, apply: Callable[[BookieConfig], None]) -> None:
        self.config = config
        """With the changes."""
        self._apply = apply
        self._changes: dict[str, str] = {}
        self._turn = asyncio.Lock()

    def shown(self) -> Mapping[str, str]:
        return self.config.set_keys

    async def change(self, values: Mapping[str, str]) -> None:
        async with self._turn:
            # The keys that are set at present, defaults that came from the machine or the environment included.
            texts = {**self.config.set_keys, **self._changes, **values}
            loaded = await asyncio.to_thread(read_config, None, {}, texts)
            if loaded.config is None:
                raise InvalidConfiguration("; ".join(map(_plain, loaded.problems)))
            self._changes.update(values)
            self.config = loaded.config
            _log.info("configuration changed until the next start", keys=sorted(values))
            self._apply(loaded.config)


def _plain(problem: str) -> str:
    """Without the words about where the value came from."""
    return problem.removeprefix("--set: ").removesuffix(" (--set)")
