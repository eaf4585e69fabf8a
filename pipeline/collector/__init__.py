"""``dpstream collect``: takes reports of devices over HTTP and writes them to Kafka.

Begin with `pipeline.collector.intake`, which decides what is taken, and
`pipeline.collector.gathering`, which writes it; `pipeline.collector.service` answers requests, and
`pipeline.collector.http_connections` reads them.
"""
