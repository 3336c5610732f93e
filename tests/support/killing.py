"""A process that dies at its n-th side effect, without a process: `Killed` is no `Exception`, so nothing that cleans up
after errors sees it, as nothing sees SIGKILL.

    switch = KillSwitch(at=3)
    files = Dying(files, switch, {"move", "delete"})     # dies before and after each call
    with pytest.raises(Killed): ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection


class Killed(BaseException):
    """The process is dead."""


class KillSwitch:
    """`at` None: never; `count` tells how many places to die there were."""

    def __init__(self, at: int | None = None) -> None:
        self.count = 0
        self._at = at

    def tick(self) -> None:
        self.count += 1
        if self.count == self._at:
            raise Killed(f"at {self.count}")


class Dying:
    """Passes everything on to `inner`; calls of `names` are places to die."""

    def __init__(self, inner: object, switch: KillSwitch, names: Collection[str]) -> None:
        self._inner = inner
        self._switch = switch
        self._names = names

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        return self._dying(found) if name in self._names else found

    def _dying(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self._switch.tick()
            result = function(*args, **kwargs)
            self._switch.tick()
            return result

        return call
