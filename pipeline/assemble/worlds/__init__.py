"""Worlds of JAX processes that are left and formed again without ending the processes."""

from meshfeed.pipeline.assemble.worlds.private_jax import supported
from meshfeed.pipeline.assemble.worlds.service import CoordinationService
from meshfeed.pipeline.assemble.worlds.world import World, current_world, join_world

__all__ = ["CoordinationService", "World", "current_world", "join_world", "supported"]
