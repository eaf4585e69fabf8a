"""``dpstream demo devices``: ten thousand devices that report for themselves, and you are one more.

`run_demo` starts everything: the local broker, a worker for each stage, two collectors, the fleet
(`fleet`), the operators' page, and a page (`visitor_page`, in `static`) on which the visitor's
browser is a device. `fleet` begins with what they are asked.
"""
