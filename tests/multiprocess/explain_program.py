"""What ``explain-partition`` says of each bad step of ``explain_steps``, on a mesh of 2 x 2.

``python explain_program.py OUT.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from meshfeed.launch.explain.cpu_devices import cpu_mesh
from meshfeed.launch.explain.steps import load_step
from meshfeed.pipeline.plan.errors import ConfigError

BAD = (
    "explain_steps:raises",
    "explain_steps:returns_no_pair",
    "explain_steps:returns_no_step",
    "explain_steps:has_no_state",
    "explain_steps:step_raises",
    "explain_steps:step_gives_no_pair",
    "explain_steps:changes_shape",
    "explain_steps:changes_structure",
    "explain_steps:does_not_divide",
    "explain_steps:on_another_mesh",
    "explain_steps:holds_text",
    "explain_steps:no_function",
    "explain_steps:nothing",
    "explain_nowhere:step",
    "explain_broken:step",
    "explain_steps",
)


def main() -> None:
    mesh = cpu_mesh({"data": 2, "model": 2})
    batch = {"tokens": jax.ShapeDtypeStruct((8, 16), jnp.int32)}
    said = {}
    for name in BAD:
        try:
            load_step(name, mesh, batch)
        except ConfigError as error:
            said[name] = str(error)
    try:
        cpu_mesh({"data": 8})
    except ConfigError as error:
        said["too late"] = str(error)
    Path(sys.argv[1]).write_text(json.dumps(said))


if __name__ == "__main__":
    main()
