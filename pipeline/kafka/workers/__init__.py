"""Faust workers: one process drives one stage on Kafka and carries out its actions."""
