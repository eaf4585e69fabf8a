"""All access to Kafka: the cluster as seen by tools, the workers, and the local broker.

Start with `cluster` for reading and writing, and with `workers`, where Faust drives a stage.
`connection` finds a cluster, `client_properties` reads its settings, `deployed_jobs` lists its
jobs, and `producer_checks` runs before a producer reports. `local_kafka` is a broker without
Docker, and `memory` runs a job without a broker. No other package writes with a Kafka client.
"""
