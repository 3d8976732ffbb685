"""From shards to row blocks: sources, tokenizers, transforms, packing, windows."""
