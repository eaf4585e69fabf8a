"""``dpstream collect``: takes reports of devices over HTTP and writes them to Kafka.

Begin with `dpstream.pipeline.collector.intake`, which decides what is taken, and
`dpstream.pipeline.collector.batch_writer`, which writes it; `dpstream.pipeline.collector.service`
answers requests, and `dpstream.pipeline.collector.http_connections` reads them.
"""
