"""Faust workers: one process drives one stage on Kafka, and carries out what the stage asks for."""
