"""The Ray actors: coordinator, node server, reader, host feed. Thin shells around pipeline.plan."""
