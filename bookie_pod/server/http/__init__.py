"""Probes and metrics over HTTP.

    start.py    what the node calls: imports aiohttp aside, then starts the server
    server.py   the listening socket and its bounds          routes.py   the paths
    tls.py      mutual TLS of `httpServerTlsEnable`

aiohttp is imported only once the bookie serves: it takes longer to load than the bookie to start.
"""
