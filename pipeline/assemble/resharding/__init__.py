"""Live arrays from one sharding to another, by the routes that ``plan.reshard`` finds."""
