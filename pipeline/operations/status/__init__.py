"""Job status, collected from the job's topics and assessed by fixed rules.

* `facts` defines the status, `JobWatch` in `collection` reads it, and `health_rules` derives
  issues.
* Workers are never queried, so a hung worker cannot delay the status.
* If devices rely on the shuffler to hide how many messages they send, the status never counts these
  messages. Instead, it contains numbers of devices, and times in seconds.
"""
