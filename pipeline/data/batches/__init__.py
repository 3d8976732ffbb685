"""From row blocks to batches: regions on the wire, leaves, digests."""
