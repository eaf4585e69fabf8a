"""What can go wrong with the local broker."""


class LocalKafkaError(RuntimeError):
    """The local broker cannot be had; the message says why and what to do."""
