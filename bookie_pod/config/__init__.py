"""The configuration of a bookie: Apache BookKeeper's `bk_server.conf`, typed and checked.

    keys.py         how a key is declared and its text read
    sections/       every key, by topic                 model.py     all sections together
    ignored.py      Apache's keys without meaning here  derive.py    defaults from other keys and the machine
    validate.py     rules between keys                  load.py      sources and their priority
    document.py     docs/configuration.md

Everything is frozen once loaded; any thread may read.
"""
