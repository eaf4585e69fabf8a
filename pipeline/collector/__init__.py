"""``dpstream collect``: receive device reports over HTTP and write them to Kafka.

Start with `dpstream.pipeline.collector.intake`, which decides which reports to accept, and
`dpstream.pipeline.collector.batch_writer`, which writes accepted reports.
"""
