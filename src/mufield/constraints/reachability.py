r"""What any policy can reach: the greatest value of a linear constraint after each move.

The greatest of $w \cdot \mu_h$ over all policies is a plan of its own. Its values are

$$V_h = w, \qquad V_t(k) = \max_a \sum_j T(k, a, j)\, V_{t+1}(j),$$

and $\mu_0 \cdot V_0$ is the greatest: exactly so if neither motion nor trips depend on mu. A motion
that sees the mass of the agent's own cell is tried with masses of several sizes. Trips P are
relaxed: after the first step, whose chances are known, agents are free to take them or not. Either
all of a cell may, $V_t = \max(\max_a T V_{t+1}, P V_{t+1})$, or at most as many as there are
passengers, each of whom adds what $P V_{t+1}$ exceeds $V_t$; the smaller bound counts.
"""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._types import Mass, Step
from ..flow.motions import dependence
from ..flow.moves import MoveFlow
from .constraint import Constraints, Linear
from .lagrangian import InfeasibleError


def without_unreachable(moves: MoveFlow) -> tuple[MoveFlow, str]:
    """The flow with constraints only at steps where a policy can satisfy each, and a note.

    Raises if no policy can satisfy one of them at any of its steps.
    """
    problem, constraints = moves.flow.problem, moves.flow.problem.constraints
    if constraints is None or dependence(problem, moves.motion).mass:
        return moves, ""
    parts, notes = list(constraints.parts), []
    held = np.asarray(constraints.active(problem.begun))
    for place, part in enumerate(parts):
        if not isinstance(part.function, Linear):
            continue
        best = greatest(moves, part.function)
        steps = 1 + np.flatnonzero(held[:, sum(constraints.sizes[:place])])
        least = -constraints.tolerance * part.scale
        out = [int(step) for step in steps if best[step - 1] < least]
        if not out:
            continue
        shares = [abs(best[step - 1] - part.function.offset) for step in out[:6]]
        most = ", ".join(f"{share:.1%}" for share in shares) + (" ..." if len(out) > 6 else "")
        what = f"no policy over these moves satisfies {part.name!r} after "
        if len(out) == len(steps):
            raise InfeasibleError(
                f"{what}any of its moves: at best {most} of the population are there. Loosen it, "
                "or name other steps"
            )
        moved = ", ".join(map(str, out))
        notes.append(
            f"{what}move {moved} (at best {most} of the population are there); the plan is for its "
            "other steps"
        )
        parts[place] = replace(part, steps=tuple(int(step) for step in steps if step not in out))
    if not notes:
        return moves, ""
    changed = Constraints(tuple(parts), constraints.sizes, constraints.rule)
    new = problem.replace(constraints=changed)
    return eqx.tree_at(lambda m: m.flow.problem, moves, new), "; ".join(notes)


def greatest(moves: MoveFlow, linear: Linear, masses: int = 8) -> Float[np.ndarray, "steps"]:
    """A bound, for each move, on what ``linear`` can be of the population after it."""
    problem, sizes = moves.flow.problem, [0.0]
    if moves.sees_mu:
        sizes += np.geomspace(0.1 / problem.grid.n_cells, 1.0, masses - 1).tolist()
    weights = jnp.asarray(linear.factors, dtype=problem.initial.dtype)
    first, trips, begin = problem.first_step, problem.trips, problem.start
    bounds = []
    for capped in (False,) if trips is None else (False, True):
        # By move, by step from the present one on (agents under way arrive later), and by cell.
        values = jnp.zeros((problem.horizon, *begin.shape), dtype=weights.dtype)
        more = np.zeros(problem.horizon)
        for step in reversed(range(first, problem.horizon)):
            values = values.at[step, 0].set(weights)
            inputs = jnp.asarray(step), jnp.asarray(sizes)
            now, added = _before(moves, values, *inputs, capped, step == first)
            values = jnp.concatenate([now[:, None], values[:, :-1]], axis=1)
            more += np.asarray(added)
        bounds.append(more + np.asarray(jnp.einsum("hdk,dk->h", values, begin)))
    return np.asarray(np.min(bounds, axis=0) + linear.offset)


@eqx.filter_jit
def _before(
    moves: MoveFlow,
    values: Float[Array, "rows stages cells"],
    step: Step,
    sizes: Float[Array, "sizes"],
    capped: bool,
    at_start: bool,
) -> tuple[Float[Array, "rows cells"], Float[Array, "rows"]]:
    """Values one step earlier, and what passengers add if they are ``capped``."""
    problem, cells = moves.flow.problem, moves.flow.problem.grid.n_cells

    def driven(size: Array) -> Float[Array, "rows cells"]:
        seen = jnp.full(cells, size, dtype=values.dtype)
        return jnp.max(expected_values(moves, seen, values[:, 0], step), axis=-1)

    best = jnp.max(jax.lax.map(driven, sizes), axis=0)
    none = jnp.zeros(len(values), dtype=values.dtype)
    if problem.trips is None:
        return best, none
    rides = jax.vmap(partial(problem.trips.worth, step=step))(values)
    if at_start:
        chance = problem.trips.chances(problem.grid, problem.initial, step)
        return (1 - chance) * best + chance * rides, none
    if not capped:
        return jnp.maximum(best, rides), none
    return best, jnp.maximum(rides - best, 0.0) @ problem.trips.most(step).astype(values.dtype)


def expected_values(
    moves: MoveFlow, seen: Mass, values: Float[Array, "rows cells"], step: Step
) -> Float[Array, "rows cells moves"]:
    """Expected value of the cell where each move lands, for each row of ``values``.

    The motion sees the masses ``seen``.
    """
    dtype = moves.actions.dtype
    # The landed mass is linear in the joint mass of cells and moves, so its derivative is exact.
    phi, seen = moves.phi(exact=True), seen.astype(dtype)
    targets = moves.targets(phi, seen, step)
    move = partial(phi.move, targets=targets, seen=seen, step=step)
    _, pull = jax.vjp(move, jnp.zeros(moves.actions.shape[:2], dtype=dtype))
    return jax.lax.map(lambda row: pull(row)[0], values.astype(dtype), batch_size=16)
