"""Nodes that read: the node server, its readers, and the shared memory between them."""
