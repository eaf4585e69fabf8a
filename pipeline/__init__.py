"""What runs. A package for each idea, in three rings; imports point inwards only.

The core is what it takes to run a job. Each imports from those above it in this list alone:

* the few modules here at the root that all of them stand on
* `values`: what a value may be
* `protocols`: the registry of protocols
* `jobs`: job files, deployed jobs, budgets
* `stages`: shuffle, aggregate, publish, sans I/O; `devices`: producers and what they read
* `kafka`: clusters, Faust's workers, the local broker, topics in memory
* `results`: what was published, and questions to it

Leaves can be deleted, each with its commands and tests; pyproject.toml says which need another:

* `planning`: what to expect; `simulation`: a job in one process
* `operations`: deploy, status, supervise, up; `ledger`: what people were charged
* `recording`: record and replay; `serve`: the live page; `collector`: reports by HTTP
* `privileges`: the ACLs of roles; `audit`: attacks; `conformance`: a suite for protocols

The shell is how people and programs come in: `cli`, the command ``dpstream``, `demo`, and
`connect`, a producer in one line.
"""
