"""A whole job on this machine: ``dpstream up``.

`run_up` starts the local broker (`keeper`), has each job deployed, worked on by processes of their
own, which end whatever becomes of this one, and observed to its last epoch (`job_run`), shows it
(`screen`) beside the truth, which it takes from the input and sends nowhere, and leaves an
`outcome`.
"""
