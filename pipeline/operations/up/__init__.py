"""Run whole jobs on this machine: ``dpstream up``.

`run_up` starts the local broker (`managed_broker`), and deploys, runs and observes each job until
its last epoch (`job_run`). The ground truth that it shows comes from the input and is never sent.
All worker processes end when this process ends for any reason.
"""
