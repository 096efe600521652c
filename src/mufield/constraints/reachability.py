r"""What any policy can reach: the greatest value of a linear constraint after each move.

The greatest of $w \cdot \mu_h$ over all policies is a plan of its own. Its values are

$$V_h = w, \qquad V_t(k) = \max_a \sum_j T(k, a, j)\, V_{t+1}(j),$$

and $\mu_0 \cdot V_0$ is the greatest: exactly so if neither motion nor trips depend on mu. A motion
that sees the mass of the agent's own cell is tried with masses of several sizes. Trips P are
relaxed: after the first step, whose chances are known, agents are free to take them or not. Either
all of a cell may, $V_t = \max(\max_a T V_{t+1}, P V_{t+1})$, or at most as many as there are
passengers, each of whom adds what $P V_{t+1}$ exceeds $V_t$; the smaller bound counts.

A learner asks the same of every move inside its model's confidence band.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._arrays import Step
from ..flow.backward import expected_values, tried_masses
from ..flow.motions import dependence
from ..flow.moves import MoveFlow
from .constraint import Constraints, Linear
from .lagrangian import InfeasibleError

Usable = Bool[Array, "one_or_steps cells moves"]


class Reach(NamedTuple):
    """What can be reached of constraints on the mass of regions.

    Attributes:
        upper: Upper bound, over all policies, of each linear constraint's margin after each move;
            infinite for other constraints.
        unreachable: True where the constraint is active but ``upper`` is a violation.
        infeasible: Constraints that are unreachable after every move after which they must hold.
    """

    upper: Float[Array, "steps parts"]
    unreachable: Bool[Array, "steps parts"]
    infeasible: Bool[Array, "parts"]

    def within(self, constraints: Constraints) -> Constraints:
        """The constraints where they are reachable; infeasible ones as they are."""
        return constraints.only(~(self.unreachable & ~self.infeasible))

    def notes(self, constraints: Constraints, who: str) -> list[tuple[str, bool]]:
        """What is unreachable, in words, and whether the constraint is infeasible."""
        found = []
        for place, part in enumerate(constraints.parts):
            steps = np.flatnonzero(self.unreachable[:, place])
            if not len(steps):
                continue
            shares = [abs(self.upper[step, place] - part.function.offset) for step in steps[:6]]
            most = ", ".join(f"{share:.1%}" for share in shares) + " ..." * (len(steps) > 6)
            there = f"at best {most} of the population are there"
            what, infeasible = f"{who} satisfies {part.name!r} after", bool(self.infeasible[place])
            moved = ", ".join(str(step + 1) for step in steps)
            after = f"{what} move {moved} ({there}); the plan is for its other steps"
            if infeasible:
                after = f"{what} any of its moves: {there}. Loosen it, or name other steps"
            found.append((after, infeasible))
        return found


def without_unreachable(moves: MoveFlow) -> tuple[MoveFlow, str]:
    """The flow with constraints only at steps where a policy can satisfy each, and a note.

    Raises if no policy can satisfy one of them at any of its steps.
    """
    problem, constraints = moves.flow.problem, moves.flow.problem.constraints
    if constraints is None or dependence(problem, moves.motion).mass:
        return moves, ""
    found = reach(moves)
    if moves.free and found.unreachable.any():
        finer = with_fine_moves(moves)
        coarse, found = found, reach(finer)
        moves = finer if (found.unreachable != coarse.unreachable).any() else moves
    notes = found.notes(constraints, "no policy over these moves")
    for note, infeasible in notes:
        if infeasible:
            raise InfeasibleError(note)
    if not notes:
        return moves, ""
    new = problem.replace(constraints=found.within(constraints))
    return eqx.tree_at(lambda m: m.flow.problem, moves, new), "; ".join(note for note, _ in notes)


def with_fine_moves(moves: MoveFlow) -> MoveFlow:
    """The flow over many moves of the box, where a few prove nothing of the actions in between."""
    actions = moves.flow.problem.actions
    points = actions.points({1: 257, 2: 33}.get(actions.dim, 9))
    return MoveFlow(moves.flow, moves.motion, points, bank_bytes=0)


@eqx.filter_jit
def reach(moves: MoveFlow, usable: Usable | None = None) -> Reach:
    """What the constraints of a flow can reach, by moves that are ``usable``; by default all."""
    problem, constraints = moves.flow.problem, moves.flow.problem.constraints
    assert constraints is not None
    best, dtype = [], problem.initial.dtype
    for part in constraints.parts:
        bound = jnp.full(problem.horizon, jnp.inf, dtype=dtype)
        if isinstance(part.function, Linear):
            bound = _greatest(moves, part.function, usable).astype(dtype)
        best.append(bound)
    bounds, active = jnp.stack(best, axis=1), constraints.active_parts(problem.begun)
    scales = np.array([part.scale for part in constraints.parts])
    out = active & (bounds < -constraints.rule.tolerance * scales)
    return Reach(bounds, out, jnp.any(active, axis=0) & jnp.all(out == active, axis=0))


def _greatest(moves: MoveFlow, linear: Linear, usable: Usable | None) -> Float[Array, "steps"]:
    """A bound, for each move, on what ``linear`` can be of the population after it."""
    problem, sizes = moves.flow.problem, jnp.asarray(tried_masses(moves))
    weights = jnp.asarray(linear.factors, dtype=problem.initial.dtype)
    begin, steps, trips = problem.initial_arrivals, problem.steps, problem.trips
    first = steps[0] if problem.first is None else problem.first
    ways = 1 if trips is None else 2

    def before(carry: tuple[Array, Array], step: Step) -> tuple[tuple[Array, Array], None]:
        """Values one step earlier, and what passengers add if no more of them are taken."""
        values, more = carry
        last = (steps == step)[:, None]
        values = values.at[:, :, 0].set(jnp.where(last, weights, values[:, :, 0]))

        def driven(size: Array) -> Float[Array, "rows cells"]:
            seen = jnp.full_like(weights, size)
            found = expected_values(moves, seen, values[:, :, 0].reshape(-1, len(weights)), step)
            if usable is not None:
                found = jnp.where(usable[jnp.minimum(step, len(usable) - 1)], found, -jnp.inf)
            return jnp.max(found, axis=-1)

        now = jnp.max(jax.lax.map(driven, sizes), axis=0).astype(weights.dtype)
        now = now.reshape(ways, len(steps), -1)
        if trips is not None:
            rides = jax.vmap(jax.vmap(partial(trips.worth, step=step)))(values)
            chance, gain = trips.chances(problem.grid, problem.initial, step), rides - now
            added = jnp.maximum(gain[1], 0.0) @ trips.most(step).astype(weights.dtype)
            more = jnp.where(step == first, more, more + added)
            free = jnp.stack([jnp.maximum(now[0], rides[0]), now[1]])
            now = jnp.where(step == first, now + chance * gain, free)
        moved = jnp.concatenate([now[:, :, None], values[:, :, :-1]], axis=2)
        begun = step >= first
        return (jnp.where(begun, moved, values), jnp.where(begun, more, carry[1])), None

    # By way, by move, by step from the present one on (agents under way arrive later), by cell.
    start = jnp.zeros((ways, len(steps), *begin.shape), dtype=weights.dtype)
    nothing = jnp.zeros_like(start[0, :, 0, 0])
    (values, more), _ = jax.lax.scan(before, (start, nothing), steps, reverse=True)
    bounds = jnp.einsum("whdk,dk->wh", values, begin)
    return jnp.min(bounds.at[-1].add(more), axis=0) + linear.offset
