"""``dpstream demo devices``: ten thousand devices that report over HTTP, and a visitor's device.

Start with `fleet`, which defines the job; `run_demo` starts everything. On the visitors' page
(`visitor_page`), the browser is a device.
"""
