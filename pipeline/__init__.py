"""Programs that run a job, in three rings; imports point inwards only.

The core runs a job. Each package imports only from the entries above it in this list:

* the small modules at this root, which all others use
* `values`: domains of values; `protocols`: the registry of protocols
* `jobs`: job files, deployed jobs, budgets
* `stages`: shuffle, aggregate, publish, sans I/O; `devices`: producers and their input
* `kafka`: clusters, Faust workers, the local broker, topics in memory
* `results`: published estimates and queries on them

Each leaf can be deleted with its commands and tests; pyproject.toml lists which need others:

* `planning`: predicted accuracy; `simulation`: a job in one process
* `operations`: deploy, status, supervise, up; `ledger`: privacy charges
* `recording`: record and replay; `serve`: the live page; `collector`: reports by HTTP
* `privileges`: ACLs for roles; `audit`: attacks; `conformance`: a suite for protocols

The shell: `cli` (the command ``dpstream``), `demo`, and `connect` (a producer in one line).
"""
