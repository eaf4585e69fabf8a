"""Really runs what this folder describes."""
