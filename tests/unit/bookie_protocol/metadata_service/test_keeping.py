"""What a session lives through, whichever service has it."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.errors import InvalidConfiguration, MetadataRefused, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.keeping import KeptSession
from tests.support.until import until


class Kept(KeptSession):
    """A driver whose renewals fail with `trouble` while there is one."""

    trouble: PodkeeperError | None = None

    async def _open_session(self) -> None:
        pass

    async def _renew(self, within: float) -> bool:
        if self.trouble is not None:
            raise self.trouble
        return True

    async def _end_session(self) -> None:
        pass

    async def _reconnect(self) -> None:
        pass

    async def _close_connection(self) -> None:
        pass

    async def _listen(self) -> None:
        await asyncio.Event().wait()

    def _fire_all(self) -> None:
        pass

    def _no_answer(self, timeout: float) -> str:
        return "no answer"


@pytest.mark.parametrize("trouble", [MetadataUnavailable, MetadataRefused, InvalidConfiguration])
async def test_no_failed_renewal_ends_the_upkeep(trouble: type[PodkeeperError]) -> None:
    """Nor files of TLS that are being replaced, or a leader that may not see the token, at that moment."""
    kept = Kept(0.3)
    await kept.connect()
    kept.trouble = trouble("now")
    kept._in_doubt.set()
    await until(lambda: kept.session.state is SessionState.SUSPENDED)
    kept.trouble = None
    await until(lambda: kept.session.state is SessionState.CONNECTED)
    await kept.close()


async def test_the_reason_why_a_session_cannot_be_renewed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(0.3)
    await kept.connect()
    kept.trouble = InvalidConfiguration("set metadataServiceTlsEnable=true")
    kept._in_doubt.set()
    await until(lambda: "metadataServiceTlsEnable" in caplog.text)
    assert len(caplog.records) == 1
    await kept.close()
