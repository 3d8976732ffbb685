"""The tiny trainer, which also tells how many programs each generation had to compile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import tiny_trainer

from meshfeed.pipeline.assemble.worlds.compilation_cache import cache_counts


def train(job: Any) -> None:
    """Writes ``programs-GENERATION-PLACE.json`` beside the folder of compiled programs."""
    before = cache_counts()
    tiny_trainer.train(job)
    asked = cache_counts().since(before)
    run_dir = Path(jax.config.jax_compilation_cache_dir).parent
    told = {"found": asked.hits, "compiled": asked.misses}
    file = run_dir / f"programs-{job.generation}-{jax.process_index()}.json"
    file.write_text(json.dumps(told))
