"""Elastic training: trainer hosts, their vaults, and the coordinator that resizes a live run."""
