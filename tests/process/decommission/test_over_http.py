"""Decommission and recovery by the admin API of a bookie that stays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from bookie_client import Client
from bookie_pod.node.standalone.cluster import StandaloneCluster
from tests.process.decommission.leaving import GOING, check_all, check_gone, until_mode, write


async def test_over_http_another_bookie_carries_it_out(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 15)
    port = embedded.bookies["bookie-1"].http_port
    base = f"http://127.0.0.1:{port}/api/v1/autorecovery"
    query = f"bookie_id={GOING}"
    async with aiohttp.ClientSession() as http, asyncio.timeout(90):

        async def get(path: str) -> Any:
            async with http.get(f"{base}/{path}") as answer:
                return answer.status, await answer.json(content_type=None) if answer.status == 200 else None

        assert (await get(f"decommission/progress?{query}"))[0] == 404
        status, plan = await get(f"decommission/plan?{query}")
        assert (status, plan["presence"], plan["refusals"]) == (200, "writable", [])
        body = json.dumps({"bookie_src": GOING, "delete_cookie": "true"})
        async with http.put(f"{base}/decommission", data=body) as answer:
            assert answer.status == 200
            assert (await answer.text()).startswith(f"Success send decommission Bookie command {GOING}\n")
        while (await get(f"decommission/progress?{query}"))[1]["phase"] != "done":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        status, safety = await get(f"safety_check?bookies={GOING}")
        assert (status, safety["safe"], safety["ledgersConcerned"]) == (200, True, 0)
        async with http.put(f"{base}/decommission/undo", data=json.dumps({"bookie_src": GOING})) as answer:
            assert answer.status == 409
    await check_gone(embedded)
    await embedded.bookies[GOING].stop()
    assert await check_all(embedded, GOING) == 1500


async def test_over_http_lost_bookies_are_recovered(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 15)
    await embedded.bookies[GOING].kill()
    base = f"http://127.0.0.1:{embedded.bookies['bookie-1'].http_port}/api/v1/autorecovery/bookie"
    async with aiohttp.ClientSession() as http, asyncio.timeout(90):
        await until_mode(embedded, "down")
        async with http.put(base, data=json.dumps({"bookie_src": [GOING], "delete_cookie": True})) as answer:
            assert answer.status == 200
            assert (await answer.text()).startswith("Success send recovery request command.\n")
        while True:
            async with http.get(f"{base}/progress") as answer:
                state = await answer.json(content_type=None)
            if not state["running"]:
                break
            await asyncio.sleep(0.1)
    assert (state["problem"], state["failed"], state["cookiesDeleted"]) == ("", [], [GOING])
    assert await check_all(embedded, GOING) == 1500
