"""How a run behaves when hosts come and go, as values that are checked when they are made.

Every wait of the elastic state machine has its limit here; the name of the setting is what the
messages say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshfeed.pipeline.plan.errors import ConfigError

_TIMES = (
    "replacement_wait_s",
    "hosts_wait_s",
    "cool_down_s",
    "drain_margin_s",
    "release_wait_s",
)
_LIMITS = (
    "heartbeat_every_s",
    "heartbeat_limit_s",
    "notice_limit_s",
    "drain_limit_s",
    "leave_limit_s",
    "join_limit_s",
    "move_limit_s",
    "start_limit_s",
    "finish_limit_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticPolicy:
    """What is done when hosts come and go. Times are in seconds.

    Attributes:
        min_hosts, max_hosts: of a world; ``max_hosts`` None: as many as there are.
        hosts_per_group: hosts that join and leave together (a TPU slice, an NVLink domain).
        replacement_wait_s: so long a lost or draining host's replacement is waited for; 0: none
            is asked for, the run goes on with the hosts that are left.
        hosts_wait_s: so long a run without enough hosts waits before it ends with an error, and a
            resize to more hosts than there are before it makes do with those.
        cool_down_s: no resize for hosts that appear so soon after the last resize; what is asked
            for and what is lost is dealt with at once.
        drain_margin_s: so long before the deadline of a drain the run leaves the host at last.
        release_wait_s: so long hosts that have left are kept at most, until a snapshot of the new
            world lies on the others.
        heartbeat_every_s, heartbeat_limit_s: hosts are heard from this often, and a host that is
            not for the latter counts as lost.
        notice_limit_s: from the wish for a barrier to its announcement.
        drain_limit_s: until every host has reached the barrier and stored its state.
        leave_limit_s: until every host has left a world; who has not is fenced.
        join_limit_s: until every host has joined a world.
        move_limit_s: until every host has its state.
        start_limit_s: until every host has compiled and taken its first step.
        finish_limit_s: from the first host's end of training to the last one's.
        snapshot_every: steps between snapshots in the vaults; 0: none.
        snapshot_copies: nodes on which each part of a snapshot lies before it counts.
        checkpoint_every: steps between checkpoints; 0: when the trainer decides.
        most_broken_worlds: so many worlds in a row may break without the run getting further.
    """

    min_hosts: int = 1
    max_hosts: int | None = None
    hosts_per_group: int = 1
    replacement_wait_s: float = 0.0
    hosts_wait_s: float = 300.0
    cool_down_s: float = 30.0
    drain_margin_s: float = 10.0
    release_wait_s: float = 60.0
    heartbeat_every_s: float = 1.0
    heartbeat_limit_s: float = 20.0
    notice_limit_s: float = 60.0
    drain_limit_s: float = 600.0
    leave_limit_s: float = 60.0
    join_limit_s: float = 120.0
    move_limit_s: float = 600.0
    start_limit_s: float = 1800.0
    finish_limit_s: float = 1800.0
    snapshot_every: int = 0
    snapshot_copies: int = 2
    checkpoint_every: int = 0
    most_broken_worlds: int = 5

    def __post_init__(self) -> None:
        for setting, least in (
            ("min_hosts", 1),
            ("hosts_per_group", 1),
            ("snapshot_every", 0),
            ("snapshot_copies", 1),
            ("checkpoint_every", 0),
            ("most_broken_worlds", 1),
        ):
            if getattr(self, setting) < least:
                raise ConfigError(setting, f"{getattr(self, setting)} is below {least}")
        if self.max_hosts is not None and self.max_hosts < self.min_hosts:
            raise ConfigError(
                "max_hosts", f"{self.max_hosts} is below min_hosts, which is {self.min_hosts}"
            )
        for setting in ("min_hosts", "max_hosts"):
            value = getattr(self, setting)
            if value is not None and value > 1 and value % self.hosts_per_group:
                low = value // self.hosts_per_group * self.hosts_per_group
                near = [n for n in (low, low + self.hosts_per_group) if n]
                raise ConfigError(
                    setting,
                    f"{value} is no multiple of hosts_per_group, which is {self.hosts_per_group}",
                    f"{' or '.join(map(str, near))} would do",
                )
        for setting in (*_TIMES, *_LIMITS):
            value = getattr(self, setting)
            if not (math.isfinite(value) and value >= 0 and (value > 0 or setting in _TIMES)):
                kind = "time" if setting in _TIMES else "positive time"
                raise ConfigError(setting, f"{value} is not a {kind} in seconds")
        if self.heartbeat_limit_s < 3 * self.heartbeat_every_s:
            raise ConfigError(
                "heartbeat_limit_s",
                f"{self.heartbeat_limit_s:g} is less than three times heartbeat_every_s, which is "
                f"{self.heartbeat_every_s:g}",
                "A host would count as lost for one late message",
            )

    @property
    def takes_snapshots(self) -> bool:
        """Whether state lies in the vaults between resizes."""
        return self.snapshot_every > 0
