"""From records to row blocks: tokens, packing, and the windows that are made of them."""
