"""Run docker/compose.yaml in real containers."""
