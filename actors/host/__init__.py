"""The end of a feed in a trainer: fetching, assembling, and what it waits for."""
