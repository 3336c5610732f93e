"""A bookie and its metadata service: after a kill with an embedded store, and with a login to ZooKeeper."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.serve_process import ServeProcess
from tests.support.zookeeper import ZooKeeperServer


def test_after_a_kill_nobody_waits_for_the_session_of_the_dead(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, {"zkTimeout": "600000", "bookieId": "b-1"}) as bookie:
        for _ in range(2):
            bookie.start()
            bookie.kill()
        began = time.monotonic()
        bookie.start()
        assert time.monotonic() - began < 30
        assert bookie.stop() == 0


@pytest.mark.zookeeper
@pytest.mark.parametrize("scheme", ["digest", "sasl"])
def test_a_bookie_that_logs_in_owns_its_znodes(tmp_path: Path, scheme: str) -> None:
    work = tmp_path / "zookeeper"
    work.mkdir()
    server = ZooKeeperServer(str(work), {"bookie": "s3cret"} if scheme == "sasl" else None)
    server.start()
    client = server.kazoo()
    try:
        (tmp_path / "login").write_text("bookie:s3cret\n")
        (tmp_path / "wrong").write_text("bookie:guess\n")
        uri = server.uri("/secure", "hierarchical")
        settings = {
            "metadataServiceUri": uri,
            "bookieId": "b-1",
            "zkTimeout": "5000",
            "zkEnableSecurity": "true",
            "zkAuthScheme": scheme,
            "zkAuthCredentialsPath": str(tmp_path / "login"),
        }
        with ServeProcess(tmp_path / "bookie", settings) as bookie:
            file = tmp_path / "cluster.conf"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            made = ServeProcess.command("cluster", "init", uri, "--config", str(file))
            assert made.returncode == 0, made.stderr
            bookie.start()
            client.start()
            if scheme == "digest":
                client.add_auth("digest", "bookie:s3cret")
            for node in ("available/b-1", "cookies/b-1", "INSTANCEID"):
                acls, _ = client.get_acls(f"/secure/{node}")
                assert [acl.id.scheme for acl in acls] == [scheme], node
            whoami = ServeProcess.command("cluster", "whoami", "--config", str(bookie.work / "bookie.conf"), "--json")
            assert whoami.returncode == 0, whoami.stderr
            found = json.loads(whoami.stdout)
            assert (found["bookie_id"], found["registered"], found["cookie"]) == ("b-1", "writable", "matches")
            assert found["instance_id_matches"]
            refused = ServeProcess.command(
                "cluster", "format", uri, "--confirm", "--config", str(file), "--instance-id", found["instance_id"]
            )
            assert refused.returncode != 0
            assert "bookie b-1 is registered; stop it first" in refused.stderr
            assert bookie.stop() == 0
            bookie.settings["zkAuthCredentialsPath"] = str(tmp_path / "wrong")
            code, line = bookie.refused()
            assert code != 0
            assert "refuses access; check the credentials" in line
            bookie.settings["zkAuthCredentialsPath"] = str(tmp_path / "none")
            code, line = bookie.refused()
            assert (code, line) == (1, f"bookie: zkAuthCredentialsPath={tmp_path}/none: No such file or directory")
    finally:
        client.stop()
        client.close()
        server.stop()
