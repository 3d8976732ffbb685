"""From a source to records: its manifest, and the chunks that a window reads."""
