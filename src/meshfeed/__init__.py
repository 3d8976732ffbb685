"""meshfeed: feeds a JAX training mesh from a Ray cluster, exactly once and in one order.

The names here are all that most users need; jax and ray are imported when a name that needs
them is first used, so that ``import meshfeed`` costs nothing in a launcher or a reader.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshfeed.actors.connect import connect as connect
    from meshfeed.actors.elastic.job import Job as Job
    from meshfeed.actors.run import start as start
    from meshfeed.pipeline.assemble.resharding.intermediate import (
        find_intermediate_sharding as find_intermediate_sharding,
    )
    from meshfeed.pipeline.assemble.resharding.trees import reshard as reshard
    from meshfeed.pipeline.data.runs.replay import open as open
    from meshfeed.pipeline.plan.errors import MeshfeedError as MeshfeedError
    from meshfeed.pipeline.plan.partition import DataPartitionType as DataPartitionType
    from meshfeed.pipeline.plan.run_config import RunConfig as RunConfig

__version__ = "0.1.0"

# Where each name lives; loaded by __getattr__.
_HOME = {
    "RunConfig": "meshfeed.pipeline.plan.run_config",
    "Job": "meshfeed.actors.elastic.job",
    "MeshfeedError": "meshfeed.pipeline.plan.errors",
    "DataPartitionType": "meshfeed.pipeline.plan.partition",
    "connect": "meshfeed.actors.connect",
    "start": "meshfeed.actors.run",
    "open": "meshfeed.pipeline.data.runs.replay",
    "reshard": "meshfeed.pipeline.assemble.resharding.trees",
    "find_intermediate_sharding": "meshfeed.pipeline.assemble.resharding.intermediate",
}

__all__ = [
    "DataPartitionType",
    "Job",
    "MeshfeedError",
    "RunConfig",
    "__version__",
    "connect",
    "find_intermediate_sharding",
    "open",
    "reshard",
    "start",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'meshfeed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
