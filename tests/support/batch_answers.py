"""What bookies answer to batch reads of clients in this process."""

import pytest

from bookie_client.connection.operations import BatchRequest


def note_batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Ledger id and number of entries of each answer, from now on."""
    noted: list[tuple[int, int]] = []
    take = BatchRequest.take

    def noting(request, answer):
        noted.append((request.ledger_id, len(answer.detail.split())))
        take(request, answer)

    monkeypatch.setattr(BatchRequest, "take", noting)
    return noted
