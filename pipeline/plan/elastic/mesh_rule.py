"""The mesh of a world by rule: which numbers of hosts fit, and what mesh each of them gives.

``data=-1,model=2`` on hosts of two devices: any number of hosts, and the data axis takes what there
is. The global batch stays the same for all of them, so a number of hosts also has to divide it,
unless ``uneven_batch=pad``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshfeed.pipeline.plan.batch_plan import BatchPlan, plan_batch
from meshfeed.pipeline.plan.errors import ConfigError
from meshfeed.pipeline.plan.mesh import DeviceOrder, MeshLayout, describe_axes, fit_axes
from meshfeed.pipeline.plan.partition import AxisRoles, Spec, resolve
from meshfeed.pipeline.plan.run_config import RunConfig, UnevenBatch

_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRule:
    """What turns a number of hosts into a mesh.

    Attributes:
        axes: size of each axis in order, at most one of them -1; None: one axis ``data``.
        devices_per_host: devices that each host owns.
        batch_size, seq_len: of the global batch, the same for any number of hosts.
        partition, roles: how the batch lies on the mesh.
        uneven_batch: ``refuse`` a number of hosts that does not divide the batch, or ``pad``.
        hosts_per_group: hosts that join and leave together.
        order: how devices lie in a mesh that is planned without them.
    """

    axes: Mapping[str, int] | None = None
    devices_per_host: int = 1
    batch_size: int
    seq_len: int
    partition: Any = "DATA"
    roles: AxisRoles = field(default_factory=AxisRoles)
    uneven_batch: UnevenBatch = UnevenBatch.REFUSE
    hosts_per_group: int = 1
    order: DeviceOrder = DeviceOrder.BY_HOST

    def __post_init__(self) -> None:
        if self.hosts_per_group < 1:
            raise ConfigError("hosts_per_group", f"{self.hosts_per_group} is below 1")
        if self.devices_per_host < 1:
            raise ConfigError("devices_per_host", f"{self.devices_per_host} is below 1")
        self._specs()

    @classmethod
    def of_run(cls, config: RunConfig, *, hosts_per_group: int = 1) -> MeshRule:
        """The rule that a run's settings give for its train feed."""
        feed = config.feeds[0]
        return cls(
            axes=config.mesh,
            devices_per_host=config.devices_per_host,
            batch_size=feed.batch_size,
            seq_len=feed.seq_len,
            partition=config.partition,
            roles=AxisRoles(
                data=config.data_axes, sequence=config.sequence_axes, model=config.model_axes
            ),
            uneven_batch=config.uneven_batch,
            hosts_per_group=hosts_per_group,
            order=config.device_order,
        )

    def mesh(self, hosts: int) -> MeshLayout:
        """The mesh of so many hosts.

        Raises:
            ConfigError: the number does not fit; names those that do.
        """
        problem = self.problem(hosts)
        if problem is not None:
            raise problem
        return MeshLayout.build(
            self.axes, hosts=hosts, devices_per_host=self.devices_per_host, order=self.order
        )

    def batch_plan(self, hosts: int) -> BatchPlan:
        """The global batch on the mesh of so many hosts.

        Raises:
            ConfigError: the number does not fit.
        """
        mesh = self.mesh(hosts)
        return plan_batch(
            mesh,
            resolve(self.partition, mesh, self.roles),
            batch_size=self.batch_size,
            seq_len=self.seq_len,
            uneven_batch=self.uneven_batch,
        )

    def fits(self, hosts: int) -> bool:
        """Whether so many hosts give a mesh that the batch divides over."""
        return not self._why_not(hosts)

    def sizes(self, most: int) -> tuple[int, ...]:
        """The numbers of hosts up to ``most`` that fit, ascending."""
        return tuple(n for n in range(1, most + 1) if self.fits(n))

    def largest(self, most: int, *, least: int = 1) -> int | None:
        """The largest number of hosts from ``least`` to ``most`` that fits; None: none does."""
        return next((n for n in range(most, least - 1, -1) if self.fits(n)), None)

    def problem(self, hosts: int, *, most: int | None = None) -> ConfigError | None:
        """Why a number of hosts is refused, with those that would do; None: it fits.

        Args:
            hosts: the number.
            most: sizes up to here are named; None: up to twice the number, and at least 16.
        """
        why = self._why_not(hosts)
        if not why:
            return None
        sizes = self.sizes(max(most or 2 * hosts, 1 if most else 16))
        shown = sizes if len(sizes) <= _SHOWN else _around(sizes, hosts)
        would_do = f"{', '.join(map(str, shown))} hosts would do" if shown else "No number would do"
        if "rows" in why:
            would_do += ", and uneven_batch=pad takes any that gives the mesh"
        return ConfigError("hosts", f"{hosts}: {why}", would_do)

    def _why_not(self, hosts: int) -> str:
        """Why a number of hosts does not fit; empty where it does."""
        if hosts < 1:
            return "a world needs a host"
        if hosts % self.hosts_per_group:
            return f"hosts come in groups of {self.hosts_per_group}"
        devices = hosts * self.devices_per_host
        try:
            axes = fit_axes(self.axes or {"data": -1}, devices)
        except ConfigError:
            return f"{devices} devices do not give the mesh {describe_axes(self.axes or {})}"
        mesh = describe_axes(axes)
        for dim, size, what in ((0, self.batch_size, "rows"), (1, self.seq_len, "columns")):
            parts = math.lcm(
                *(math.prod(axes[axis] for axis in spec[dim] or ()) for spec in self._specs())
            )
            if size % parts and (dim or self.uneven_batch is UnevenBatch.REFUSE):
                return f"the {size} {what} of a batch do not divide into {parts} on mesh {mesh}"
        return ""

    def _specs(self) -> set[Spec]:
        """The specs of the leaves; they depend on the names of the axes alone."""
        axes = {
            name: 2 if size == -1 else size for name, size in (self.axes or {"data": -1}).items()
        }
        mesh = MeshLayout.build(axes, hosts=1, devices_per_host=math.prod(axes.values()))
        return set(resolve(self.partition, mesh, self.roles).values())


def _around(sizes: tuple[int, ...], hosts: int) -> tuple[int, ...]:
    """The nearest of many sizes."""
    return tuple(sorted(sorted(sizes, key=lambda n: abs(n - hosts))[:_SHOWN]))
