"""The live page for all jobs, and its API.

Threads collect data (`follower`, `background`), the event loop stores it (`job_store`, `history`),
and `api`, `sockets` and `downloads` send the data to viewers. The page's files are in `static`.
"""
