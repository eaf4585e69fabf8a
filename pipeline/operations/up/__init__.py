"""A whole job on this machine: ``dpstream up``.

`run_up` starts the local broker (`keeper`), deploys the job, runs its stages and its producer
as processes of their own (`operations.restarted_processes`), which end whatever becomes of this
one, follows what is published (`observation`, `progress`), shows it (`screen`) beside the truth,
which it takes from the input and sends nowhere, and leaves a table, a plot and a summary
(`outcome`, `plot`).
"""
