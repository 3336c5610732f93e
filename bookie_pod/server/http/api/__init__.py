"""What every HTTP path is made of, whatever it is about.

table.py      paths, methods, parameters and answers as data: the one place that says what is served
schema.py     JSON schemas of what is answered and taken
layout.py     JSON texts as the reference lays them out
call.py       one request, its parameters checked
replies.py    what a handler hands back
dispatch.py   from a request to a handler and back: methods, errors, time-outs, bounds
workers.py    blocking work on a few threads
openapi.py    `/openapi.json` from the table
"""
