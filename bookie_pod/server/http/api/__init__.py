"""The parts of every HTTP path, whatever it is about.

table.py      routes with their roles and handlers, as data: the one place that says what is served
call.py       one request, its parameters checked, and the reply that a handler hands back
dispatch.py   from a request to a handler and back: methods, errors, time-outs, bounds, JSON laid out as by Jackson
context.py    what handlers reach; blocking work on a few threads
openapi.py    `/openapi.json` from the table, with the JSON schemas of what is answered and taken
"""
