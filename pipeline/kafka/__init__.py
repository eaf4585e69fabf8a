"""Everything that speaks to Kafka: the cluster as tools see it, the workers, the local broker.

Begin with `cluster` for reading and writing, and with `workers`, where Faust drives a stage.
`connection` finds a cluster, `client_properties` reads its settings, `deployed_jobs` says which
jobs it has, `producer_checks` is what a producer sees to before it draws. `local_kafka` is a broker
without Docker, `memory` runs a job without any. No other package imports a client of Kafka's to
write.
"""
