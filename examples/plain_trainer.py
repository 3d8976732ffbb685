"""A training loop in N plain processes, fed by a run that ``meshfeed serve`` has brought up.

meshfeed serve --data 'data/*.parquet' --tokenizer tokenizer.json --run-dir runs/mine
python examples/plain_trainer.py runs/mine 0 2 & python examples/plain_trainer.py runs/mine 1 2
"""

import sys

import jax
import jax.numpy as jnp

import meshfeed

run_dir, process, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jax.distributed.initialize("127.0.0.1:9876", processes, process)  # on a TPU pod: no arguments
mesh = jax.make_mesh((jax.device_count(),), ("data",))

feed = meshfeed.connect(run_dir, mesh=mesh)  # every process calls it alike


@jax.jit
def train_step(targets_seen, batch):
    """Stands for a model: counts the tokens that it would have learned to predict."""
    return targets_seen + batch["loss_weights"].sum()


state = jnp.zeros(())
for batch in feed:  # a dict of global jax.Arrays [batch_size, seq_len], sharded over the mesh
    state = train_step(state, batch)
    if feed.step % 100 == 0:
        checkpoint = {"model": state, "feed": feed.get_state()}  # the feed's part: plain JSON

waited = feed.metrics()["waiting_seconds"]
print(f"process {process}: {feed.step} steps, {state:,.0f} targets, waited {waited:.1f} s")
feed.close()
