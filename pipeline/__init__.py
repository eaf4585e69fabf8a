"""What runs. A package for each idea; each imports from those above it in this list alone.

* `values`: what a value may be
* `protocols`: the registry of protocols
* `jobs`: job files, deployed jobs, budgets
* `stages`: shuffle, aggregate, publish, sans I/O; `devices`: producers and what they read
* `kafka`: clusters, Faust's workers, the local broker
* `results`: what was published, and questions to it; `planning`: what to expect
* `simulation`: topics in memory; `operations`: deploy, status, supervise, up
* `recording`: record and replay; `serve`: the live page; `demo`
* `cli`: the command ``dpstream``

Here at the root are the few modules that all of them stand on, and `connect`, the way in for
programs: a producer in one line.
"""
