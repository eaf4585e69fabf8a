"""All access to Kafka: clusters for tools, the workers, and the local broker.

Start with `cluster` for reading and writing, and with `workers`, where Faust drives a stage.
`connection` finds a cluster, `local_kafka` is a broker without Docker, and `memory` runs a job
without a broker. No other package writes with a Kafka client.
"""
