"""Constraints under an uncertain model: they must hold in all of some sampled models.

A learner plans with one motion, an optimistic one, and must satisfy constraints under every other
that its data allow. While mirror ascent climbs, margins are raised by what the worst sampled model
falls short of the planned one. A plan that is still not safe is mixed with a safe policy.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._arrays import Margins, Mass, Masses, Step
from ..flow.backward import Weights
from ..flow.flow import Flow
from ..flow.paths import flow_under
from ..flow.phi import AbstractPhi, Arrivals
from ..flow.rollout import forward
from ..policies.tables import TablePolicy
from ..shocks import Path, Paths

Landings = Float[Array, "*steps cells moves window"]
"""What moves lead to in one model, as of `Outcomes.models`."""


class Mixture(eqx.Module):
    """A plan mixed with a safe policy: as many agents follow it as the constraints allow.

    Attributes:
        share: Share of the agents that follow what was planned; the others are safe.
        resumed: Whether those do as in the last episode, instead of following the safe policy.
        margins: The least margins of any sampled model, as shares of the constraints.
        expected: The population's distributions under the model's mean.
        changed: Whether the profile to be run is another than the planned one.
    """

    weights: Weights
    share: Float[Array, ""]
    resumed: Bool[Array, ""]
    margins: Margins
    expected: Masses
    changed: Bool[Array, ""]

    @property
    def note(self) -> str:
        """What is unusual, in words."""
        share, worst = float(self.share), float(jnp.min(self.margins))
        if share == 1 and worst >= 0:
            return ""
        base = "last policy" if self.resumed else "safe policy"
        who = f"no plan satisfies the constraints in all sampled models; running the {base}"
        if share > 0:
            who = f"{share:.0%} of the agents follow the plan and the others the {base}"
        if worst >= 0:
            return who + (": with more of them a constraint might be violated" if share > 0 else "")
        return (
            f"{who}, which violates a constraint itself; one may be violated by {-worst:.1%}. If "
            "you know a policy that satisfies the constraints, give it as safe="
        )


class Outcomes(eqx.Module):
    """What policies over a fixed set of moves lead to in the mean model and in sampled ones.

    A constraint holds if it does in every sampled model; and also if it does after subtracting each
    sampled model's error on the last episode, so that samples need tell only what changes. The true
    model was not wrong then: if it is like the samples, one bound is as good as the other.

    Attributes:
        flow: The flow of the problem, with agents' own actions.
        models: What moves lead to: in the mean model, in samples that plans are made for, and in as
            many for a check, because the best of many plans looks better than it is in samples that
            it was chosen by. Landing kernels, or displacements if models look at the step: kernels
            of all steps may not fit into memory.
        errors: Expected minus realised margins of the last episode, by model; None without one.
        displacements: What any actions of the cells lead to at a step in all models; None if only
            the moves are asked for.
        trials: Shares of a plan that are tried in a mixture with a safe policy.
        boundary_share: Each trial is at this share of the predicted boundary.
        paths: Of shocks, if any: rows of weights are (shock, cell), choices (shock, move).
    """

    flow: Flow
    actions: Float[Array, "*cells moves action_dim"]
    models: Float[Array, "models *steps cells choices window"]
    errors: Float[Array, "models steps margins"] | None
    displacements: Callable[[Array, Step], Array] | None = None
    trials: int = eqx.field(static=True, default=3)
    boundary_share: float = eqx.field(static=True, default=0.95)
    paths: Paths | None = None

    def after(self, mass: Masses, actions: Array, weights: Weights) -> "Outcomes":
        """The outcomes, corrected by the models' errors on an episode.

        ``mass`` are its distributions. The policy drew with these weights from the ``actions``: the
        moves, or for each step and cell its own.
        """
        problem = self.flow.problem
        was = problem.margins(mass)

        def error(model: Array) -> Margins:
            begin = mass[0 if problem.first is None else problem.first]
            expected = problem.margins(episode(self.flow, model, weights, begin))
            return jnp.where(jnp.isfinite(was), expected - was, 0.0)

        models = self._models_at(actions) if actions.ndim == 4 else self.models
        return replace(self, errors=jax.lax.map(error, models))

    def _models_at(
        self, actions: Float[Array, "steps cells own action_dim"]
    ) -> Float[Array, "models steps cells own target"]:
        assert self.displacements is not None
        rows = (actions, self.flow.problem.steps)
        found = jax.lax.map(lambda row: self.displacements(*row), rows)
        return jnp.swapaxes(found, 0, 1)

    def expected(self, weights: Weights) -> Masses:
        """The population under the mean model; with shocks, jointly with the present one."""
        found, _ = self.outcome(self.models[0], weights)
        if self.paths is None:
            return found
        now = jax.nn.one_hot(self.paths.numbers, weights.shape[1] // found.shape[2])
        joint = jnp.einsum("p,phs,phk->hsk", self.paths.chances, now[:, : found.shape[1]], found)
        return joint.reshape(len(joint), -1).astype(weights.dtype)

    def outcome(self, model: Array, weights: Weights) -> tuple[Array, Margins]:
        """The population in one model, and the margins; with shocks on each possible path."""
        flow, (steps, _, moves) = self.flow, weights.shape
        if self.paths is None:
            mass = episode(flow, model, weights)
            return mass, flow.problem.margins(mass)
        by_shock = weights.reshape(steps, -1, flow.problem.grid.n_cells, moves).swapaxes(1, 2)

        def on(path: Path, chance: Array) -> tuple[Masses, Margins]:
            # Under each shock only its own moves are made.
            now = jax.nn.one_hot(path[:steps], by_shock.shape[2], dtype=weights.dtype)
            made, under = now[:, None, :, None] * by_shock, flow_under(flow, path)
            mass = episode(under, model, made.reshape(*made.shape[:2], -1))
            return mass, jnp.where(chance > 0, under.problem.margins(mass), jnp.inf)

        return jax.lax.map(lambda row: on(*row), self.paths[:2], batch_size=8)

    def planned(self, weights: Weights) -> Margins:
        """The least margins in the models that plans are made for."""
        return self._worst(weights, self.models[: 1 + len(self.models) // 2])

    def checked(self, weights: Weights) -> Margins:
        """The least margins in all models."""
        return self._worst(weights, self.models)

    def checked_table(self, table: TablePolicy) -> Margins:
        """The same of a table with actions of its own for each step and cell."""
        return self._worst(table.weights, self._models_at(table.actions))

    def _worst(self, weights: Weights, models: Array) -> Margins:
        found = jax.lax.map(lambda model: self.outcome(model, weights)[1], models)
        least = jnp.min(found, axis=0)
        if self.errors is None:
            return least
        return jnp.maximum(least, jnp.min(found - self.errors[: len(found)], axis=0))

    def _of_mean(self, weights: Weights) -> tuple[Margins, Margins]:
        """The margins in the mean model, and those less its error on the last episode."""
        found = self.outcome(self.models[0], weights)[1]
        return found, found if self.errors is None else found - self.errors[0]

    def mixed(
        self,
        weights: Weights,
        safe: Weights,
        last: Weights | None = None,
        rounded: Bool[Array, ""] | bool = False,
    ) -> Mixture:
        """The greatest share of a plan that satisfies the constraints in a mixture.

        In a mixture a share of the agents follows the plan and the others the safe policy, as far
        as the mean model can tell who is who. The policy of the ``last`` episode takes the place of
        the safe one if it satisfies the constraints, too: that it is safe was seen. ``rounded``
        says whether the weights only come near to what was planned.

        Where the safe policy turns out to violate a constraint itself, nothing is known to be safe:
        a mixture may then violate it as much in the mean model as that policy does.
        """
        whole = self.checked(weights)
        one, no = jnp.ones((), dtype=weights.dtype), jnp.asarray(False)

        def mix() -> tuple[Array, ...]:
            resumed, base = no, safe
            if last is None:
                least = self.checked(safe)
            else:
                least = self.checked(last)
                resumed = jnp.min(least) >= 0
                base = jnp.where(resumed, last, safe)
                least = jax.lax.cond(resumed, lambda: least, lambda: self.checked(safe))
            still = self.expected(base)
            plan, rest = self.expected(weights)[:-1, :, None], still[:-1, :, None]
            allowed, by_mean = 0 * one, no
            if last is not None:
                allowed = jnp.minimum(jnp.min(self._of_mean(base)[1]), 0.0)
                by_mean = (jnp.min(least) < 0) & (allowed < 0)

            def judged(weights: Weights, worst: Margins) -> Margins:
                return jnp.where(by_mean, jnp.maximum(*self._of_mean(weights)), worst)

            def mixture(share: Array) -> Weights:
                own, others = share * plan, (1 - share) * rest
                both = own * weights + others * base
                # Where nobody is expected, the plan, as far as it is followed at all.
                unseen = share * weights + (1 - share) * base
                met = own + others
                return jnp.where(met > 1e-9, both / jnp.maximum(met, 1e-9), unseen)

            def attempt(_: Any, tried: tuple[Array, ...]) -> tuple[Array, ...]:
                low, margins, high, violated, _ = tried
                # Constraints are concave, so that less than the straight line between is on the
                # safe side; a little less than that, because samples differ in who is who.
                ratio = (margins - allowed) / (margins - violated)
                crossing = jnp.clip(jnp.min(jnp.where(violated < allowed, ratio, 1.0)), 0.0, 1.0)
                share = low + (high - low) * self.boundary_share * crossing
                worst = self.checked(mixture(share))
                found = judged(mixture(share), worst)
                better = jnp.min(found) >= allowed
                yes = (share, found, high, violated, worst)
                no = (low, margins, share, found, tried[-1])
                return tuple(jnp.where(better, a, b) for a, b in zip(yes, no, strict=True))

            first = (0 * one, judged(base, least), one, judged(weights, whole), least)
            share, *_, margins = jax.lax.fori_loop(0, self.trials, attempt, first)
            return mixture(share), share, resumed, margins

        feasible = jnp.min(whole) >= 0
        found = jax.lax.cond(feasible, lambda: (weights, one, no, whole), mix)
        mixed, share, resumed, margins = found
        return Mixture(mixed, share, resumed, margins, self.expected(mixed), rounded | (share < 1))


def episode(flow: Flow, model: Landings, weights: Weights, start: Mass | None = None) -> Masses:
    """The population's distributions in one model, from the problem's start or another."""
    phi, targets = _transition(flow, model)

    def step(mass: Mass, now: Array, number: Step) -> tuple[Arrivals, None]:
        return phi.push(mass[:, None] * now, targets(number), mass, number), None

    return forward(phi, flow.problem, weights, step, start=start)[0]


def _transition(flow: Flow, model: Landings) -> tuple[AbstractPhi, Callable[[Step], Any]]:
    """The transition in one model, and the displacements that it needs at a step."""
    if model.ndim == 4:
        return flow.phi, lambda step: model[step]
    return flow.phi.with_kernels(jnp.swapaxes(model, 1, 2)[None, :, None]), lambda step: None
