"""The console: pages about a cluster for people with a browser, made of what the admin API answers.

    html.py       HTML that is escaped by construction      wording.py    numbers, sizes and times as people read them
    frame.py      the frame of every page, its headers      parts.py      bars, tables, cards
    source.py     where pages ask; the state of bookies, looked at every few seconds for all who watch
    site.py       all pages by their paths                  pages/        one module for each view
    console.css, console.js                                 style and script, in every page and known by their hashes

Bookies serve it (`bookie_pod.admin.console`). A page asks only for what the role
`viewer` may see, and changes nothing.

Invariants
- Every text of a page passes through `html.Tag`, which escapes it. There is no other way to make `Html`.
- Nothing is loaded from elsewhere: a page is one document, and the content security policy allows nothing else.
- A page costs a bounded number of requests, and all who watch share what is asked every few seconds (`source.Watcher`).
"""
