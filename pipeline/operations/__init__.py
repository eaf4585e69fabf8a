"""Operator commands: deploy, monitor, drain, repair and supervise jobs, or run whole jobs.

Start with `deployments`. `status` reads and assesses the state of a job, `supervisor` runs a worker
for every deployed job, and `up` runs jobs on this machine. `processes` starts processes, each with
a parent-death watch (`parent_watch`). `restarted_processes` restarts processes that fail, and
`forks` starts many processes that share their imports.
"""
