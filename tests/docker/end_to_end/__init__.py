"""Run the compose file of the folder docker in real containers."""
