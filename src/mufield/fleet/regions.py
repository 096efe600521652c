"""A fleet between regions: trips with travel times, and where idle vehicles drive.

A vehicle that is free in region i either serves a trip to j, drives empty to j or stays. It is free
again in j after the steps that this takes, in i after one. Plans are those of the network-flow
programme (`network_flow.py`), which sees vehicles under way and today's requests.

`Regions.problem` is the same fleet as a mean-field `Problem` on nodes. There a vehicle cannot
choose among passengers, and a policy sees step and region only, so the programme earns more.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from ..errors import UserError
from ..problem import Problem
from ..space.nodes import Nodes
from .network_flow import Dispatcher, FleetState, Orders, RegionPlan, network_flow
from .passengers import Passengers
from .trips import Trips


class RegionDay(NamedTuple):
    """A day of a fleet, by step and pair: requests, what was done, and what that has shown.

    The last four tables are as in `Regions`, and count only where somebody served or drove.
    """

    profit: float
    requests: Float[np.ndarray, "steps regions regions"]
    served: Float[np.ndarray, "steps regions regions"]
    driven: Float[np.ndarray, "steps regions regions"]
    pay: Float[np.ndarray, "steps regions regions"]
    trip_steps: Int[np.ndarray, "steps regions regions"]
    drive_steps: Int[np.ndarray, "steps regions regions"]
    drive_cost: Float[np.ndarray, "steps regions regions"]

    @classmethod
    def tables(cls) -> tuple[str, ...]:
        """Names of the last four."""
        return cls._fields[4:]


@dataclass(frozen=True, eq=False)
class Regions:
    """Demand, pay and travel times between regions, by step, origin and destination.

    Attributes:
        demand: Expected number of trips that are asked for; numbers are Poisson.
        pay: What a served trip earns, after its own cost.
        trip_steps: Steps after which a vehicle that serves is free again, at least 1.
        drive_steps: The same for one that drives empty; one that stays is free after one step.
        drive_cost: Cost of driving empty; nothing is paid for staying.
        vehicles: Free vehicles at the first step, by region.
        names: Of the regions.
    """

    demand: Num[np.ndarray, "..."]
    pay: Num[np.ndarray, "..."]
    trip_steps: Num[np.ndarray, "..."]
    drive_steps: Num[np.ndarray, "..."]
    drive_cost: Num[np.ndarray, "..."]
    vehicles: Num[np.ndarray, "..."]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks; of all tables but the demand, those without steps become tables of all steps."""
        shape = np.shape(self.demand)
        if len(shape) != 3 or shape[1] != shape[2] or 0 in shape:
            raise UserError(f"demand must be by step, origin and destination, got shape {shape}")
        for name in ("demand", *RegionDay.tables(), "vehicles"):
            wanted = shape[1:2] if name == "vehicles" else shape
            table = np.asarray(getattr(self, name), dtype=float)
            if table.shape not in (wanted, wanted[-2:]) or not np.isfinite(table).all():
                raise UserError(f"{name} must be finite, of the shape {wanted}, got {table.shape}")
            steps = name.endswith("_steps")
            if (name != "pay" and table.min() < steps) or (steps and (table % 1).any()):
                what = "whole numbers from 1 on" if steps else "not negative"
                raise UserError(f"{name} must be {what}, got {table.min():g} as the least")
            table = np.broadcast_to(table, wanted).astype(int if steps else float)
            object.__setattr__(self, name, table)
        names = self.names or map(str, range(shape[1]))
        object.__setattr__(self, "names", tuple(names))

    @property
    def horizon(self) -> int:
        """Number of steps of a day."""
        return len(self.demand)

    @property
    def longest(self) -> int:
        """Steps of the longest way between two regions."""
        return int(max(self.trip_steps.max(), self.drive_steps.max()))

    def plan(self, state: FleetState | None = None, *, margins: bool = True) -> RegionPlan:
        """Solves the programme for the rest of the day.

        Args:
            state: What is seen; its requests are the demand of the first planned step. By default
                the day's beginning, with the expected demand.
            margins: Whether the plan knows that demand is random.
        """
        first = 0 if state is None else state.step
        demand, *others = (getattr(self, name)[first:] for name in ("demand", *RegionDay.tables()))
        starts = np.zeros(demand.shape[:2])
        starts[0] = self.vehicles
        random = demand.sum(axis=-1) * margins
        if state is not None:
            demand = np.concatenate([state.requests[None], demand[1:]])
            later = state.arriving[: len(starts) - 1]
            starts[0], starts[1 : 1 + len(later)] = state.free, later
            random[0] = 0.0
        return RegionPlan(first, *network_flow(demand, *others, starts=starts, random=random))

    def dispatch(self, state: FleetState) -> Orders:
        """The orders of a step, planned anew from what is seen."""
        return self.plan(state).orders

    def simulate(self, dispatcher: Dispatcher, seed: int = 0) -> RegionDay:
        """A day with random requests; those that are not served at their step are lost."""
        rng = np.random.default_rng(seed)
        count, longest = len(self.vehicles), self.longest
        ahead = np.zeros((self.horizon + longest, count))  # who is free at each step
        ahead[0] = self.vehicles
        profit, (asked, served, driven) = 0.0, np.zeros((3, self.horizon, count, count))
        for step in range(self.horizon):
            requests = rng.poisson(self.demand[step]).astype(float)
            free = ahead[step].copy()
            later = ahead[step + 1 : step + longest].copy()
            orders = dispatcher(FleetState(step, free, later, requests))
            idle = free - orders.serve.sum(axis=1) - orders.drive.sum(axis=1)
            wrong = [np.min(idle), np.min(requests - orders.serve), *map(np.min, orders)]
            if min(wrong) < -1e-6:
                raise UserError(
                    f"orders of step {step} need more vehicles or requests than there are (or "
                    f"negative ones), by {-min(wrong):g}"
                )
            asked[step], served[step], driven[step] = requests, orders.serve, orders.drive
            ahead[step + 1] += idle
            for sent, lasts in zip(orders, (self.trip_steps, self.drive_steps), strict=True):
                np.add.at(ahead, (step + lasts[step], np.arange(count)[None]), sent)
            profit += float(np.sum(self.pay[step] * orders.serve))
            profit -= float(np.sum(self.drive_cost[step] * orders.drive))
        seen = (getattr(self, name) for name in RegionDay.tables())
        return RegionDay(profit, asked, served, driven, *seen)

    def problem(self) -> Problem:
        """The fleet in the mean-field limit, on nodes; an action is the region to drive to.

        Beside its regions there are nodes "j in k", where vehicles are k steps before they are free
        in region j. Demand and pay are those of one vehicle of the fleet. The motion is `motion`.
        """
        count, stages = len(self.names), self.longest
        under_way = [f"{name} in {k}" for k in range(1, stages) for name in self.names]
        nodes = Nodes([*self.names, *under_way])
        fleet = self.vehicles.sum()
        wanted = self.demand.sum(axis=-1)
        demand = np.zeros((self.horizon, nodes.n_cells))
        demand[:, :count] = wanted / fleet
        shares = self.demand / np.maximum(wanted, 1e-12)[..., None]
        matrix = np.tile(np.eye(nodes.n_cells), (self.horizon, 1, 1))
        rows = np.where(wanted > 0)
        matrix[rows] = 0.0
        step, origin, goal = np.nonzero(self.demand)
        lasts = self.trip_steps[step, origin, goal]
        np.add.at(matrix, (step, origin, goal + count * (lasts - 1)), shares[step, origin, goal])
        passengers = Passengers(nodes, demand)
        mean_pay = np.sum(shares * self.pay, axis=-1)
        costs = self.drive_cost * (1 - np.eye(count))
        initial = np.zeros(nodes.n_cells)
        initial[:count] = self.vehicles / fleet
        return Problem(
            space=nodes,
            actions=list(self.names),
            reward=_RegionReward(passengers, jnp.asarray(mean_pay), jnp.asarray(costs)),
            horizon=self.horizon,
            initial=initial,
            trips=Trips(passengers, matrix),
        )

    def motion(self, node: Any, action: Any, mu: Any) -> Float[Array, "nodes"]:
        """Probabilities of the next node in `problem`: certain, because travel times are."""
        count = len(self.names)
        here = jnp.minimum(node, count - 1)
        lasts = jnp.where(action == here, 1, jnp.asarray(self.drive_steps)[mu.step, here, action])
        end = jnp.where(node < count, action + count * (lasts - 1), node - count)
        return jnp.zeros(count * self.longest).at[end].set(1.0)


class _RegionReward(eqx.Module):
    """Pay of the mean trip if a vehicle serves, otherwise the cost of driving to a region."""

    passengers: Passengers
    pay: Float[Array, "steps regions"]
    cost: Float[Array, "steps regions regions"]

    def __call__(self, node: Any, action: Any, mu: Any) -> Any:
        count = self.pay.shape[1]
        here = jnp.minimum(node, count - 1)
        served = self.passengers(node, mu)
        earned = served * self.pay[mu.step, here]
        driving = (1 - served) * self.cost[mu.step, here, action]
        return jnp.where(node < count, earned - driving, 0.0).astype(mu.mass.dtype)
