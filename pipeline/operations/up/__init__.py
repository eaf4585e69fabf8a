"""Run whole jobs on this machine: ``dpstream up``.

`run_up` starts the local broker (`managed_broker`), and deploys, runs and observes each job to its
last epoch (`job_run`). Worker processes end with this one, however it ends. It shows each job
(`screen`) alongside the ground truth, and returns an `outcome`. The ground truth comes from the
input and is sent nowhere.
"""
