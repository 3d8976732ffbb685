"""Moves of live arrays from one sharding to another: what they cost, and the best route."""
