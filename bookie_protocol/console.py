"""A console of rich's for text in a terminal: ids, names and words of strangers are shown without any effect.

On a terminal tables fit it; elsewhere no line is folded, because programs read lines.

Invariants
- Nothing in a text is markup, nor the name of an emoji: the IPv6 address 2001:db8:a:b::1 has two of them.
- A character that controls something is shown as one that cannot be. What the encoding does not know is the stream's
  matter (`shown.take_any_text`).

Threads: as rich's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_UNFOLDED: Final = 100_000


class _HarmlessConsole(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_harmless(text), **options)  # before it is measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else _harmless(segment.text)
            yield segment if shown is segment.text else segment._replace(text=shown)  # a table has one for every cell


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output, or standard error."""
    found = _HarmlessConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = _UNFOLDED
    return found


def _harmless(text: str) -> str:
    if text == "\n" or text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" or "\ud800" <= each <= "\udfff" else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )
