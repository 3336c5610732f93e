"""HTTP: probes, metrics, and what the admin API (`bookie_pod.admin`) is served by.

    start.py    what the node calls: imports aiohttp aside, then starts the server
    server.py   the listening socket and its bounds          routes.py     probes and metrics; all paths together
    api/        what every path is made of                   tls.py        `httpServerTlsEnable`, files followed
    handshakes.py  connections before TLS is there           untaken.py    answers that their client does not take

aiohttp is imported only once the bookie serves: it takes longer to load than the bookie to start.

A new path is a route with its types (`bookie_protocol.admin_api`) and a row in a table: schema, checks of parameters,
page and tests follow from them. Handlers know the ports only. Errors of the taxonomy become statuses in one place
(`api.dispatch`).
"""
