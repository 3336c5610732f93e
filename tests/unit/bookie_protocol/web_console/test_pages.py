"""Every page, of a cluster in which every text is a stranger's attack, and of one that answers nothing."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any, ClassVar, get_args, get_origin
from urllib.parse import unquote

import msgspec
import pytest

from bookie_protocol.admin_api import autorecovery as autorecovery_api
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.bodies import Query, Route
from bookie_protocol.admin_api.bookie import LOAD, BookieLoad
from bookie_protocol.admin_api.cluster import ClusterFacts, KnownBookie, LedgerSearch
from bookie_protocol.admin_api.streams import StreamQuery, StreamsQuery
from bookie_protocol.errors import BookieUnavailable, CouldNotTell, MetadataUnavailable
from bookie_protocol.web_console import source as source_module
from bookie_protocol.web_console.frame import Place
from bookie_protocol.web_console.limits import TEXT
from bookie_protocol.web_console.pages.bookie import BookiePage
from bookie_protocol.web_console.pages.bookies import BookiesPage
from bookie_protocol.web_console.pages.ledgers import LedgerPage
from bookie_protocol.web_console.pages.log import LogPage
from bookie_protocol.web_console.parts import MOST_ROWS
from bookie_protocol.web_console.site import PAGES, Page
from bookie_protocol.web_console.source import (
    AGE_S,
    FACTS_AGE_S,
    LONGEST_S,
    MOST_BOOKIES,
    MOST_KNOWN,
    RECENT_S,
    Watcher,
)

HOSTILE = "\"'></td></svg></style></script><script>alert(1)</script><img src=x onerror=alert(1)>javascript:alert(1)"
QUERIES: dict[type[Query], Query] = {
    Query: Query(),
    BookiesPage: BookiesPage(),
    BookiePage: BookiePage(HOSTILE),
    LogPage: LogPage(HOSTILE, "1f.log"),
    LedgerPage: LedgerPage(5, replicas=True),
    LedgerSearch: LedgerSearch(bookie=HOSTILE),
    StreamQuery: StreamQuery(HOSTILE),
    StreamsQuery: StreamsQuery(prefix=HOSTILE),
}
NAMES = """html head meta title style body a header span nav ul li button main div h1 h2 h3 section p dialog table thead
    tbody tr th td kbd form label input select option dl dt dd code bdi svg rect strong details summary script"""
ELEMENTS = frozenset(NAMES.split())
BUDGET = 200_000


def example(kind: Any, text: str = HOSTILE, number: int = 5, items: int = 2) -> Any:
    """A value of the type in which every text is hostile, and nothing is missing."""

    def part(kind: Any) -> Any:
        return example(kind, text, number, items)

    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        given = {field.name: part(field.type) for field in msgspec.structs.fields(kind)}
        return kind(**given)
    if kind is str:
        return text
    if kind is int:
        return number
    if kind is float:
        return float(max(-(10**308), min(number, 10**308)))
    if kind is bool:
        return True
    if origin is list:
        return [part(arguments[0])] * items
    if origin is not None and issubclass(origin if isinstance(origin, type) else object, dict | Counter):
        return {example_key(arguments[0]): part(arguments[1])}
    choices = [each for each in arguments if each not in (type(None), msgspec.UnsetType)]
    if str(origin) == "typing.Annotated":
        return part(arguments[0])
    if str(origin) == "typing.Literal":
        return arguments[0]
    if "Mapping" in str(origin):
        value = part(arguments[1])
        return {example_key(arguments[0], at): value for at in range(items)}
    return part(choices[0])


def example_key(kind: Any, at: int = 0) -> Any:
    return str(5 + at) if kind is str else example(kind)


class Hostile:
    """A cluster of one bookie, whose id, host, location and everything else are hostile."""

    own_bookie = None
    size: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
        self.asked[route.path] += 1
        assert route.method == "GET"
        if route is cluster_api.KNOWN:
            return [KnownBookie(HOSTILE, "writable", True, True, HOSTILE, HOSTILE, "https://evil.example")]
        return example(route.answer, **self.size)

    async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
        assert bookie_id == HOSTILE
        return await self.cluster(route, query)


class Silent(Hostile):
    """A cluster of which nothing but the names of its bookies can be found out."""

    async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
        if route is cluster_api.KNOWN:
            return await super().cluster(route, query)
        raise MetadataUnavailable(HOSTILE)

    async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
        raise BookieUnavailable(HOSTILE)


class Elements(HTMLParser):
    """Counts elements, and finds attributes that no page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.wrong += [name for name, value in attrs if name.startswith(("on", "src", "style"))]
        # A page leads nowhere but to pages of the same console: addresses of strangers are text.
        self.wrong += [value for name, value in attrs if name == "href" and value and value[0] not in "/?#"]


async def made(page: Page, source: Hostile) -> str:
    query = QUERIES[page.query]
    return await page.text(source, Watcher(), query, Place("/ui", HOSTILE, ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path or "/")
@pytest.mark.parametrize("kind", [Hostile, Silent])
async def test_what_strangers_wrote_is_text(page: Page, kind: type[Hostile]) -> None:
    text = await made(page, kind())
    elements = Elements(text)
    assert set(elements.found) <= ELEMENTS
    assert (elements.found["script"], elements.found["style"], elements.wrong) == (1, 1, [])
    assert "<img" not in text
    assert "&lt;img src=x onerror" in text
    assert len(text.encode()) < BUDGET


class Wide(Hostile):
    """A cluster in which every list has hundreds of items, and a list of lists as many of each."""

    size: ClassVar = {"items": 400}


class Many(Hostile):
    """A cluster in which lists are as long as they may be for an answer of a bookie to be shown."""

    size: ClassVar = {"items": 50}


class Huge(Hostile):
    """A cluster with numbers of any size and very long texts."""

    size: ClassVar = {"text": "<" * 100_000, "number": 10**400}


class Negative(Hostile):
    size: ClassVar = {"number": -(10**400)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path or "/")
@pytest.mark.parametrize("kind", [Wide, Many, Huge, Negative])
async def test_a_page_is_small_whatever_others_answer(page: Page, kind: type[Hostile]) -> None:
    text = await made(page, kind())
    found = Elements(text)
    assert found.found["tr"] < 20 * MOST_ROWS
    assert len(text.encode()) < 15 * BUDGET


async def test_bookies_that_left_nothing_but_a_cookie_push_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "MOST_KNOWN", 3)

    class Littered(Hostile):
        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            found = await super().cluster(route, query)
            if route is not cluster_api.KNOWN:
                return found
            return [*(KnownBookie(f"away-{at}", "none", True, False) for at in range(9)), *found]

    look = await Watcher().look(Littered())
    assert HOSTILE in look.bookies
    assert (len(look.bookies), look.left_out) == (3, 7)


async def test_texts_of_a_look_are_cut() -> None:
    class Long(Huge):
        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            if route is cluster_api.KNOWN:
                long = "x" * 100_000
                known = [KnownBookie(HOSTILE, "writable", True, True, long, long, long)]
                return [*known, KnownBookie(long, "writable", True, True)]
            return await super().cluster(route, query)

    look = await Watcher().look(Long())
    assert (set(look.bookies), look.left_out) == ({HOSTILE}, 1)
    seen = look.bookies[HOSTILE]
    assert seen.load is not None
    texts = (seen.known.location, seen.known.host, seen.load.complaint)
    assert [len(each or "") for each in texts] == [TEXT] * 3
    assert seen.known.admin_url is None


@pytest.mark.parametrize("answer", ["another ledger", "no entry", "no base64"])
async def test_an_odd_answer_about_a_ledger_stays_in_its_place(answer: str) -> None:
    class Odd(Hostile):
        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            found = await super().cluster(route, query)
            if route is not cluster_api.METADATA:
                return found
            ledger = found["5"]
            if answer == "another ledger":
                return {"6": ledger}
            if answer == "no entry":
                return {"5": msgspec.structs.replace(ledger, all_ensembles={"x": [], "²": [], "9" * 5000: []})}
            return {"5": msgspec.structs.replace(ledger, custom_metadata={"a": "\u00e9", "b": "=", "c": "_"})}

    assert await made(next(page for page in PAGES if page.path == "/ledger"), Odd())


class Hanging(Hostile):
    """Bookies that do not answer until they are let go, and one that does if it is asked at all."""

    def __init__(self, hanging: int) -> None:
        super().__init__()
        self.hanging = hanging
        self.go = asyncio.Event()

    async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
        if route is cluster_api.KNOWN:
            return [KnownBookie(each, "writable", True, False) for each in (*map(str, range(self.hanging)), "honest")]
        return await super().cluster(route, query)

    async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
        self.asked[bookie_id] += 1
        if bookie_id != "honest":
            await self.go.wait()
        return await self.cluster(route, query)


async def test_an_answer_that_makes_an_error_is_a_problem_of_its_bookie_alone() -> None:
    class Odd(Hanging):
        async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
            if bookie_id == "1":
                raise KeyError(bookie_id)
            return await super().bookie(bookie_id, route, query)

    source = Odd(3)
    source.go.set()
    look = await Watcher().look(source)
    assert [each.known.bookie_id for each in look.bookies.values() if each.problem is not None] == ["1"]


async def test_a_look_under_way_hides_no_recent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "PATIENCE_S", 0.0)
    now = 100.0
    source, watcher = Hanging(1), Watcher(clock=lambda: now)
    source.go.set()
    first = await watcher.look(source)
    source.go.clear()
    now += AGE_S
    assert [await watcher.look(source) for _ in range(20)] == [first] * 20
    assert source.asked[cluster_api.KNOWN.path] == 0
    now += RECENT_S
    late = asyncio.create_task(watcher.look(source))
    await asyncio.wait([late], timeout=0.01)
    assert not late.done()
    source.go.set()
    assert (await late).at == 100.0 + AGE_S


async def test_bookies_that_hang_cost_a_look_seconds_and_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "LOOK_S", 0.05)
    monkeypatch.setattr(source_module, "ASK_S", 0.02)
    source = Hanging(100)
    first = await Watcher().look(source)
    assert 0 < sum(source.asked.values()) < 100
    assert first.bookies["honest"].problem is not None
    source, watcher = Hanging(100), Watcher()
    for _ in range(20):
        watcher._may_begin = 0.0
        if (await watcher.look(source)).bookies["honest"].load is not None:
            break
    assert max(source.asked.values()) <= 2  # those that were not asked come before those that hang
    for _ in range(3):  # and those that answered before both
        watcher._may_begin = 0.0
        assert (await watcher.look(source)).bookies["honest"].load is not None


async def test_who_waits_for_a_look_that_is_stopped_hears_it() -> None:
    source, watcher = Hanging(1), Watcher()
    waiting = asyncio.create_task(watcher.look(source))
    await asyncio.wait([waiting], timeout=0.01)
    await watcher.stop()
    with pytest.raises(CouldNotTell):
        await waiting


async def test_no_page_shows_a_password() -> None:
    class Open(Hostile):
        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            found = await super().cluster(route, query)
            if route is cluster_api.METADATA:
                return {key: msgspec.structs.replace(each, password="c2VjcmV0") for key, each in found.items()}
            return found

    ledger = next(page for page in PAGES if page.path == "/ledger")
    assert "c2VjcmV0" not in await made(ledger, Open())


class Large(Hostile):
    """As many bookies as are asked."""

    async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
        if route is cluster_api.KNOWN:
            return [
                KnownBookie(
                    f"bookie-{at:03}.bookie.default.svc.cluster.local:3181",
                    "writable",
                    True,
                    False,
                    f"10.0.{at // 250}.{at % 250}",
                    f"/zone-{at % 3}/node-{at}",
                    "",
                )
                for at in range(MOST_BOOKIES + 20)
            ]
        found = example(route.answer)
        return msgspec.structs.replace(found, complaint=None) if isinstance(found, BookieLoad) else found

    async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
        return await self.cluster(route, query)


async def test_pages_of_the_largest_cluster_keep_to_the_budget_and_leave_no_bookie_out() -> None:
    source, watcher = Large(), Watcher()
    overview = next(page for page in PAGES if not page.path)
    text = await overview.text(source, watcher, Query(), Place("/ui", "x", ""))
    assert len(text.encode()) < BUDGET
    bookies = next(page for page in PAGES if page.path == "/bookies")
    seen: list[str] = []
    after = ""
    while True:
        text = await bookies.text(source, watcher, BookiesPage(after=after), Place("/ui", "x", ""))
        assert len(text.encode()) < BUDGET
        seen += re.findall(r'class="name"><bdi>(bookie-\d+)', text)
        following = re.search(r'after=([^"&]+)" rel="next"', text)
        if following is None:
            break
        after = unquote(following[1])
    assert seen == [f"bookie-{at:03}" for at in range(MOST_BOOKIES + 20)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path or "/")
async def test_a_fault_of_one_answer_stays_in_its_place(page: Page) -> None:
    class Odd(Hostile):
        fails: Route[Any] | None = None

        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            if route is self.fails:
                raise TypeError("of one odd record")
            return await super().cluster(route, query)

    for route in (autorecovery_api.CHECKS, decommission_api.PROGRESS):
        source = Odd()
        source.fails = route
        assert "of one odd record" not in await made(page, source)


async def test_registrations_of_strangers_push_out_no_bookie() -> None:
    class Crowded(Large):
        strangers = 0
        seen: ClassVar[list[str]] = []

        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            if route is cluster_api.KNOWN:
                crowd = [f"0{at:05}" for at in range(self.strangers)]
                return [KnownBookie(each, "writable", True, False) for each in (*crowd, "honest", "other")]
            return await super().cluster(route, query)

        async def bookie(self, bookie_id: str, route: Route[Any], query: Query | None = None) -> Any:
            self.seen.append(bookie_id)
            if bookie_id != "honest":
                raise CouldNotTell("it does not answer")
            return await super().bookie(bookie_id, route, query)

    now = [0.0]
    source, watcher = Crowded(), Watcher(lambda: now[0])
    await watcher.look(source)
    source.strangers = MOST_KNOWN
    now[0] += LONGEST_S
    look = await watcher.look(source)
    assert look.bookies["honest"].problem is None
    source.strangers = 2 * MOST_BOOKIES
    for _ in range(3):  # those that never answered take turns
        source.seen.clear()
        now[0] += LONGEST_S
        await watcher.look(source)
        assert len(set(source.seen)) == MOST_BOOKIES
        if "other" in source.seen:
            return
    raise AssertionError("it was never asked again")


async def test_however_many_watch_the_cluster_is_looked_at_once() -> None:
    now = 100.0
    source, watcher = Hostile(), Watcher(clock=lambda: now)
    looks = await asyncio.gather(*(watcher.look(source) for _ in range(50)))
    assert {id(look) for look in looks} == {id(looks[0])}
    assert source.asked[LOAD.path] == 1
    now += AGE_S
    await watcher.look(source)
    assert (source.asked[LOAD.path], source.asked[cluster_api.STATE.path]) == (2, 1)


async def test_a_look_that_failed_is_no_earlier_look() -> None:
    class Lost(Hostile):
        lost = False

        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            if self.lost:
                self.asked[route.path] += 1
                raise MetadataUnavailable("no answer")
            return await super().cluster(route, query)

    now = 100.0
    source, watcher = Lost(), Watcher(clock=lambda: now)
    await watcher.look(source)
    source.lost = True
    now += AGE_S
    lengths = set()
    for _ in range(3):
        with pytest.raises(MetadataUnavailable) as raised:
            await watcher.look(source)
        lengths.add(len(raised.traceback))
    assert len(lengths) == 2, "of the look, and of an answer that is the same for all"
    assert watcher._failure is not None
    assert watcher._failure.__traceback__ is None
    assert source.asked[cluster_api.KNOWN.path] == 2
    source.lost = False
    now += AGE_S
    assert (await watcher.look(source)).bookies


async def test_a_bookie_that_is_away_stays_in_its_place_on_the_map() -> None:
    class Leaving(Hostile):
        away = False

        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            if route is cluster_api.KNOWN and self.away:
                return [KnownBookie(HOSTILE, "none", True, False)]
            return await super().cluster(route, query)

    now = 100.0
    source, watcher = Leaving(), Watcher(clock=lambda: now)
    await watcher.look(source)
    source.away = True
    for _ in range(2):
        now += FACTS_AGE_S
        seen = (await watcher.look(source)).bookies[HOSTILE]
        assert (seen.known.registration, seen.known.location, seen.load) == ("none", HOSTILE, None)


async def test_rates_and_the_estimate_come_of_what_was_seen() -> None:
    class Moving(Hostile):
        adds, clock, marked = 100, 5.0, 90

        async def cluster(self, route: Route[Any], query: Query | None = None) -> Any:
            answer = await super().cluster(route, query)
            if isinstance(answer, BookieLoad):
                return msgspec.structs.replace(answer, adds=self.adds, clock_seconds=self.clock)
            if isinstance(answer, ClusterFacts):
                return msgspec.structs.replace(answer, under_replicated=self.marked)
            return answer

    now = 100.0
    source, watcher = Moving(), Watcher(clock=lambda: now)
    first = await watcher.look(source)
    assert first.bookies[HOSTILE].rates is None
    assert first.healing is not None
    assert first.healing.seconds_left is None
    now += FACTS_AGE_S
    source.adds, source.clock, source.marked = 150, 15.0, 70
    second = await watcher.look(source)
    rates, healing = second.bookies[HOSTILE].rates, second.healing
    assert rates is not None
    assert rates.adds == 5
    assert healing is not None
    assert (healing.per_second, healing.seconds_left) == (2, 35)
    now += FACTS_AGE_S
    source.adds = 3  # it started again
    assert (await watcher.look(source)).bookies[HOSTILE].rates is None
