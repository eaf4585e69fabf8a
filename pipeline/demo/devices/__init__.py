"""``dpstream demo devices``: ten thousand devices that report over HTTP, and a visitor's device.

`run_demo` starts everything: the local broker, a worker for each stage, two collectors, the fleet
(`fleet`), the operators' page and the visitors' page (`visitor_page`, with files in `static`). On
the visitors' page, the browser is a device. Start with `fleet`, which defines the job.
"""
