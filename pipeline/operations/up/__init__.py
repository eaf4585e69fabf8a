"""Run whole jobs on this machine: ``dpstream up``.

`run_up` starts the local broker (`managed_broker`), and deploys, runs and observes each job until
its last epoch (`job_run`). It shows each job (`screen`) alongside its ground truth, and returns an
`outcome`. The ground truth comes from the input and is never sent. All worker processes end when
this process ends for any reason.
"""
