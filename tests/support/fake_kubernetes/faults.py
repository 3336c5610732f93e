"""What can go wrong with a request: it is slow, refused, or breaks, before or after it was carried out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class Fault:
    """Strikes `times` requests whose `METHOD path` matches `pattern`, after `skip` of them."""

    pattern: str
    status: int = 0
    """Instead of an answer; 0: none."""
    delay_s: float = 0.0
    breaks: bool = False
    """The connection breaks instead of an answer."""
    done: bool = False
    """The request is carried out all the same."""
    times: int = 1
    skip: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def strikes(self, request: str) -> bool:
        if self.times <= 0 or not re.search(self.pattern, request):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True
