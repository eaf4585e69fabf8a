"""What operators do with jobs: deploy, watch, drain, mend, supervise, or run one from end to end.

Begin with `deployments`. `status` gathers and judges what a job is doing, `supervisor` runs workers
for every deployed job, `up` runs a single job on this machine. `drains`, `redrive`,
`dead_letter_log` and `registrations` are verbs of their own. Whoever runs others does it by
`processes`, each on a `lifeline`; `restarted_processes` starts those again that fail, `forks` many
of them at once.
"""
