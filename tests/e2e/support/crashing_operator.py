"""The operator, as it is, but it dies after a number of side effects: `python -m tests.e2e.support.crashing_operator`.

A side effect is a request that changes something, to the API server or to a pod's admin API; leases and events do not
count. The process ends at once, the moment the answer is there: nothing that follows is done or written.

    CRASH_AFTER    how many side effects this process has

Threads: the counter is shared by all of them.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import urllib3

EXIT_CODE: Final = 86
_CHANGES: Final = ("POST", "PUT", "PATCH", "DELETE")
_COUNTS_NOT: Final = ("/leases", "/events", "/selfsubjectaccessreviews", "/selfsubjectrulesreviews")


class Countdown:
    def __init__(self, effects: int) -> None:
        self._left = effects
        self._lock = threading.Lock()

    def effect(self, method: str, url: str) -> None:
        path = urlsplit(url).path
        if method.upper() not in _CHANGES or any(part in path for part in _COUNTS_NOT):
            return
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
            print(f"dies after {method} {path}", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)


def arm(countdown: Countdown) -> None:
    """Whatever library the operator uses for a request, it ends in one of these two."""
    plain = urllib3.HTTPConnectionPool.urlopen

    def urlopen(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        answer = plain(self, method, url, *args, **kwargs)
        countdown.effect(method, url)
        return answer

    urllib3.HTTPConnectionPool.urlopen = urlopen  # type: ignore[method-assign]
    plain_aiohttp = aiohttp.ClientSession._request

    async def request_aiohttp(self: Any, method: str, url: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await plain_aiohttp(self, method, url, *args, **kwargs)
        countdown.effect(method, str(url))
        return answer

    aiohttp.ClientSession._request = request_aiohttp  # type: ignore[method-assign]


def main() -> None:
    arm(Countdown(int(os.environ["CRASH_AFTER"])))
    from bookie_operator.main import main as operate

    operate()


if __name__ == "__main__":
    main()
