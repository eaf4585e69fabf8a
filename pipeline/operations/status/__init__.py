"""Job status, collected from the job's topics and judged by fixed rules.

* `facts` defines the status, and `collection` reads it (`JobWatch`, as often as once a second).
  `heartbeats` reads workers' latest heartbeats, and `health_rules` derives issues that require
  action.
* Workers are never queried, so a hung worker cannot hide.
* Where devices rely on the shuffler to hide how many messages they send, status never counts those
  messages. It reports devices and seconds instead.
"""
