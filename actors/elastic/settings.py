"""What is trained, how, and what is done when hosts come and go."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from meshfeed.pipeline.plan.elastic.policy import ElasticPolicy
from meshfeed.pipeline.plan.errors import ConfigError


class WorldKind(StrEnum):
    """Where the processes of the next generation come from."""

    FRESH = "fresh"
    """New processes, started and imported before the old ones end."""

    REUSE = "reuse"
    """The same processes leave their world and join the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSettings:
    """What is trained, and how.

    Attributes:
        feed: name of the feed.
        train: ``module:function`` or ``file.py:function``.
        devices: simulated CPU devices of each host; None: those that JAX finds.
        world: where the processes of the next generation come from.
        policy: what is done when hosts come and go.
        vault_budget: bytes that the vault of a host may hold.
        compiled: folder of compiled programs that all hosts share, made if it is not there, which
            its owner alone may write to; None: every world compiles anew.
        hold_at: steps after which training waits to be released.
        digests: whether every batch is digested as it lies on the devices.
    """

    feed: str
    train: str
    devices: int | None
    world: WorldKind = WorldKind.FRESH
    policy: ElasticPolicy = field(default_factory=ElasticPolicy)
    vault_budget: int = 1 << 30
    compiled: str | None = None
    hold_at: frozenset[int] = frozenset()
    digests: bool = False

    def __post_init__(self) -> None:
        if self.vault_budget < 1:
            raise ConfigError("vault_budget", f"{self.vault_budget} bytes is below 1")
