"""Operator commands on jobs: deploy, monitor, drain, repair, supervise, or run from end to end.

Start with `deployments`. `status` collects and judges the state of a job, `supervisor` runs a
worker for every deployed job, `up` runs jobs on this machine. `processes` starts processes, each
with a parent-death watch (`parent_watch`). `restarted_processes` restarts failed ones, and `forks`
starts many at once.
"""
