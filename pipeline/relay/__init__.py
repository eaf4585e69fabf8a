"""``dpstream relay``: bundles what a region's gateways send, and writes it to Kafka as it is.

Begin with `pipeline.relay.intake`, which says what is taken, and `pipeline.relay.bundling`, which
puts records together, both sans I/O; `pipeline.relay.service` answers requests, which
`pipeline.collector.http_connections` reads, and `pipeline.relay.relay` runs it all. How a gateway
sends lies in `pipeline.devices.relayed`.
"""
