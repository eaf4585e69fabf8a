"""The live page of all jobs, and the API that it uses.

What is known is gathered by threads (`follower`, `background`), kept by the event loop (`board`,
`history`), and given to viewers (`api`, `sockets`, `downloads`). The page itself lies in `static`.
"""
