"""What runs: job files, producers, stages, Faust workers, local Kafka, command line."""
