"""What can go wrong with the local broker."""

from dpstream.pipeline.errors import DpstreamError


class LocalKafkaError(DpstreamError):
    """The local broker cannot be had; the message says why and what to do."""
