"""Continual, differentially private statistics from Kafka streams.

* `topics`: what is on the wire
* `randomizers`: what a device runs, and its exact privacy law
* `aggregators`: mergeable integer state, and the estimators
* `pipeline`: what runs

Importing this package imports none of them.
"""
