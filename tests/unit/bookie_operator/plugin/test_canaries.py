"""A secret in every place of a cluster's spec and in every Secret: it stands in no status, event, log line or metric of
the operator, and in nothing that its commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_operator.api.kinds import EVENT, POD_EVENT, SECRET, TASK
from bookie_operator.builders.secrets import secret_texts
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.kubectl_rig import KubectlRig

PLANTED = {
    "config": {
        "httpServerKeyStorePassword": "c4nary of a store",
        "httpServerTrustStorePassword": "c4nary of another store",
    },
    "pod": {"env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "c4nary of a variable"}]},
}
WRONG = {
    "config": {
        "httpServerKeyStorePassword": "${c4nary}",
        "httpServerKeyStorePasword": "c4nary of no key",
        "gcWaitTime": "c4nary of a number",
        "zkAuthCredentials": "user:c4nary of ZooKeeper",
        "metadataServiceUri": "zk://user:c4nary@zookeeper/ledgers",
    },
    "pod": {"env": [{"name": "BK_bookieId", "value": "c4nary"}, {"value": "c4nary of no variable"}]},
}
COMMANDS = (("plan",), ("plan", "-o", "json"), ("status",))
WITH_SPEC = ("status", "-o", "json")
"""Shows what stands under names that do not tell."""


async def test_no_secret_is_told(rig: KubectlRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = rig.fake
    found: dict[str, str] = {}

    async def ask(when: str, *others: tuple[str, ...]) -> None:
        for words in (*COMMANDS, *others):
            await rig.run(words[0], NAME, *words[1:])
            found[f"{when}: {' '.join(words)}"] = "".join(capsys.readouterr())

    with capture_logs() as logged:
        fake.apply(**PLANTED)
        await ask("before a rollout", WITH_SPEC)
        await fake.one_pass()
        fake.ask("again", "Restart", bookies=["demo-bookie-0"])
        await fake.until(lambda: fake.status.get("operation") is not None)
        await ask("in a rollout", WITH_SPEC)
        await fake.settle()
        fake.apply(**WRONG)
        await fake.until(lambda: fake.condition("SpecValid") == "False")
        await ask("refused")
    found["status"] = json.dumps(fake.status)
    for kind in (EVENT, POD_EVENT, TASK):
        found[kind.plural] = json.dumps(fake.store.list(kind, NAMESPACE))
    found["log"] = json.dumps(logged, default=str)
    found["metrics"] = fake.operators[0].metrics.render().decode()
    secrets = [secret_texts(each) or {} for each in fake.store.list(SECRET, NAMESPACE)]
    made = [text for data in secrets for key, text in data.items() if "token" in key or key.endswith("key")]
    assert made, "the operator makes tokens and keys"
    assert [(place, one) for place, text in found.items() for one in ("c4nary", *made) if one in text] == []
