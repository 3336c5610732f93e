"""Probes, metrics and the admin API over HTTP.

    start.py    what the node calls: imports aiohttp aside, then starts the server
    server.py   the listening socket and its bounds          routes.py     all paths in one table
    api/        what every path is made of                   admin/        the admin API
    tls.py      `httpServerTlsEnable`, files followed        document.py   `docs/http-api.md`

aiohttp is imported only once the bookie serves: it takes longer to load than the bookie to start.

A new path is a dataclass for its answer and a row in a table: schema, checks of parameters, page and tests follow
from it. Handlers know the ports only. Errors of the taxonomy become statuses in one place (`api.dispatch`).
"""
