"""The `kubectl-bookie` command against the Kubernetes in one process: with logs, and ports that are forwarded.

async with kubectl_rig(tmp_path) as rig:
    rig.fake.apply()
    await rig.fake.settle()
    assert await rig.run("status", "demo") == 0
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import WSMsgType, web

from bookie_operator.api import transport
from bookie_operator.api.errors import Unreachable
from bookie_operator.api.kinds import POD
from bookie_operator.api.transport import Request, Transport
from bookie_operator.plugin.main import run
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster
from tests.support.fake_kubernetes.store import Refused

_POD = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/(?P<what>log|portforward)")


class KubectlRig:
    def __init__(self, fake: FakeCluster, folder: Path) -> None:
        self.fake = fake
        self.kubeconfig = str(folder / "kubeconfig")
        self.logs: dict[str, list[str]] = {}
        """Lines by pod, each with its time; `POD.previous` are those before its restart."""
        self.written = asyncio.Condition()
        """Notified when lines were added."""
        self.closing = asyncio.Event()
        self.followed: list[str] = []
        """Pods whose log somebody began to follow."""
        self.forwarded: list[str] = []
        self.requests = 0
        self.writes_left: int | None = None
        """Before all connections break, as if the command had been killed. None: they do not."""
        self.elsewhere: dict[str, int] = {}
        """Ports of this machine on which real bookies serve HTTP, by the pods that they stand in for."""

    async def run(self, *arguments: str) -> int:
        """The command in a thread of its own; its exit code."""
        return await asyncio.to_thread(run, [*arguments, "--kubeconfig", self.kubeconfig])

    async def write(self, pod: str, *lines: str) -> None:
        async with self.written:
            self.logs.setdefault(pod, []).extend(lines)
            self.written.notify_all()

    def _breaks(self, method: str) -> bool:
        """Whether the connection of this request does."""
        self.requests += 1
        if self.writes_left is None:
            return False
        self.writes_left -= method != "GET"
        return self.writes_left < 0

    def beside(self, monkeypatch: pytest.MonkeyPatch, command: object) -> None:
        """Commands from now on, of the module `command`, ask the API server and the pods without forwarded connections,
        which take most of the time of one that looks a hundred times."""
        loop = asyncio.get_running_loop()

        async def answer(request: Request) -> Any:
            if self._breaks(request.method):
                raise Unreachable(f"{request}: the connection broke")
            return self.fake.server.ask(request)

        class Beside(Transport):
            async def request(self, request: Request) -> Any:
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(request), loop))

        def open_socket(pod: str) -> socket.socket:
            address = self.fake.store.get(POD, NAMESPACE, pod)["status"]["podIP"]
            return socket.create_connection((address, self.fake.operators[0].settings.admin_port))

        monkeypatch.setattr(transport, "Transport", Beside)
        monkeypatch.setattr(command, "opener", lambda api: open_socket)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self._breaks(request.method):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        found = _POD.fullmatch(request.path)
        if found is None:
            return await self.fake.server.handle(request)
        try:
            pod = self.fake.store.get(POD, found["namespace"], found["name"])
        except Refused as refused:
            return web.json_response({"message": refused.message}, status=404)
        if found["what"] == "portforward":
            return await self._forward(request, found["name"], pod["status"]["podIP"])
        return await self._log(request, found["name"])

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        name = f"{pod}.previous" if request.query.get("previous") == "true" else pod
        if name not in self.logs:
            return web.json_response({"message": f'container "bookie" in pod "{pod}" is waiting to start'}, status=400)
        tail = int(request.query.get("tailLines", 1_000_000))
        lines = self.logs[name]
        at = max(0, len(lines) - tail)
        if request.query.get("follow") != "true":
            return web.Response(text="".join(f"{line}\n" for line in lines[at:]))
        self.followed.append(pod)
        response = web.StreamResponse()
        await response.prepare(request)
        while not self.closing.is_set():
            sent = len(lines)
            for line in lines[at:sent]:
                await response.write(f"{line}\n".encode())
            at = sent
            async with self.written:
                await self.written.wait_for(lambda sent=sent: sent < len(lines) or self.closing.is_set())
        return response

    async def _forward(self, request: web.Request, pod: str, address: str) -> web.StreamResponse:
        """As the kubelet does: two channels for the port, each begun with its number."""
        self.forwarded.append(pod)
        port = int(request.query["ports"])
        answer = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await answer.prepare(request)
        for channel in (0, 1):
            await answer.send_bytes(bytes((channel,)) + port.to_bytes(2, "little"))
        if pod in self.elsewhere:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.elsewhere[pod])
        else:
            reader, writer = await asyncio.open_connection(address, self.fake.operators[0].settings.admin_port)

        async def back() -> None:
            while data := await reader.read(65536):
                await answer.send_bytes(b"\x00" + data)
            await answer.close()

        sending = asyncio.create_task(back())
        try:
            async for message in answer:
                if message.type is WSMsgType.BINARY and message.data[0] == 0:
                    writer.write(message.data[1:])
        finally:
            sending.cancel()
            writer.close()
        return answer


@asynccontextmanager
async def kubectl_rig(folder: Path, namespace: str = NAMESPACE) -> AsyncIterator[KubectlRig]:
    async with fake_cluster() as fake:
        rig = KubectlRig(fake, folder)
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", rig.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        write_kubeconfig(rig.kubeconfig, f"http://127.0.0.1:{runner.addresses[0][1]}", namespace)
        try:
            yield rig
        finally:
            rig.closing.set()
            async with rig.written:
                rig.written.notify_all()
            await runner.cleanup()


def write_kubeconfig(path: str, server: str, namespace: str, contexts: Sequence[str] = ("test",)) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": server}}],
        "users": [{"name": "somebody", "user": {"token": "t"}}],
        "contexts": [
            {"name": name, "context": {"cluster": "fake", "user": "somebody", "namespace": namespace}}
            for name in contexts
        ],
        "current-context": contexts[0],
    }
    Path(path).write_text(yaml.safe_dump(content))
