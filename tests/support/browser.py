"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

CHROMIUM: Final = shutil.which("chromium")
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
START_S: Final = 60.0
STEP_S: Final = 30.0
_LOOK_S: Final = 0.05


class Tab:
    """One page. `password`: shown when a server asks for one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str, password: str | None) -> None:
        self._socket = socket
        self._session = session
        self._password = password
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        """Errors of scripts, refusals by the content security policy, and dialogs."""
        self.requests: list[str] = []
        """URLs."""
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        await self._socket.send_json(message)
        async with asyncio.timeout(STEP_S):
            return await answer

    async def begin(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        if self._password is not None:
            await self.call("Fetch.enable", handleAuthRequests=True)

    async def go(self, url: str) -> None:
        """Open a page; its script has run then."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && document.getElementById('content') !== null")

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript is."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true."""
        async with asyncio.timeout(STEP_S):
            while not await self.value(expression):  # noqa: ASYNC110  # the browser tells of no such event
                await asyncio.sleep(_LOOK_S)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    async def likes(self, scheme: str) -> None:
        """`dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self, path: Path, width: int = 1280, height: int = 800) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                self._take(json.loads(message.data))

    def _take(self, said: Mapping[str, Any]) -> None:
        answer = self._answers.pop(said.get("id", 0), None)
        if answer is not None:
            if not answer.done():
                failed = said.get("error")
                answer.set_exception(RuntimeError(str(failed))) if failed else answer.set_result(said["result"])
            return
        given = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.complaints.append(given["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"dialog: {given['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Fetch.requestPaused":
                self._tell("Fetch.continueRequest", requestId=given["requestId"])
            case "Fetch.authRequired":
                shown = {"response": "ProvideCredentials", "username": "anybody", "password": self._password}
                self._tell("Fetch.continueWithAuth", requestId=given["requestId"], authChallengeResponse=shown)

    def _tell(self, method: str, **parameters: Any) -> None:
        task = asyncio.create_task(self.call(method, **parameters))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


@asynccontextmanager
async def browser(work: Path, password: str | None = None) -> AsyncIterator[Tab]:
    """A browser with one tab, and a new profile below `work`."""
    assert CHROMIUM is not None, "no Chromium is installed"
    profile = work / "profile"
    profile.mkdir()
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port, path = await _address(profile / "DevToolsActivePort")
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
        ):
            tab = Tab(socket, await _attached(socket), password)
            await tab.begin()
            try:
                yield tab
            finally:
                tab._reading.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STEP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _address(file: Path) -> tuple[str, str]:
    async with asyncio.timeout(START_S):
        while True:
            with suppress(OSError, ValueError):
                port, path = (await asyncio.to_thread(file.read_text)).split()
                return port, path
            await asyncio.sleep(_LOOK_S)


async def _attached(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The session of the first tab."""
    await socket.send_json({"id": 1, "method": "Target.getTargets"})
    targets = (await _answer(socket, 1))["targetInfos"]
    tab = next(each["targetId"] for each in targets if each["type"] == "page")
    await socket.send_json({"id": 2, "method": "Target.attachToTarget", "params": {"targetId": tab, "flatten": True}})
    return str((await _answer(socket, 2))["sessionId"])


async def _answer(socket: aiohttp.ClientWebSocketResponse, number: int) -> Any:
    while True:
        said = await socket.receive_json(timeout=STEP_S)
        if said.get("id") == number:
            return said["result"]
