"""What a job is doing: gathered from its topics, judged by fixed rules.

`facts` are what can be said, `collection` reads them (`JobWatch`, as often as once a second),
`heartbeats` reads the last words of workers, and `judging` says what needs a person. Nothing is
asked of the workers themselves: a worker that hangs cannot hide. Where devices rely on the shuffle
stage to hide how many messages they send, nothing here counts those: devices and seconds are told.
"""
