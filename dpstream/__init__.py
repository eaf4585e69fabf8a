"""Continual, differentially private statistics from Kafka streams.

* `topics`: wire formats
* `randomizers`: device-side mechanisms and their exact privacy guarantees
* `aggregators`: mergeable integer state, and the estimators
* `pipeline`: the programs that run a job; importing `dpstream` imports none of these
"""
