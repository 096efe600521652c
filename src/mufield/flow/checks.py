"""Checks of motions, policies and rollouts; errors name the cell, step and action at fault."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._arrays import Mass, Masses
from ..errors import UserError, distribution, fail_where, in_words
from ..interfaces import AbstractLifted
from ..policies.base import AbstractPolicy, ActionLaw, Profile
from ..problem import Motion, Problem
from ..space.measure import at_all_cells, mean_field_at
from .motions import dependence, program_of
from .phi import Displacements, displacements
from .rollout import Misuse, Rollout


def real_motion(problem: Problem, motion: Motion | None) -> Motion:
    """The motion as a function of states and actions; raises if it returns no real numbers.

    Looks at types alone, so it costs little and may be called inside a compiled function.
    """
    function = getattr(motion, "__func__", motion)
    name = getattr(function, "__qualname__", type(motion).__name__)
    wanted = f"the motion {name} must be a function (state, action, mu) that returns an array"
    if not callable(motion):
        raise UserError(f"{wanted}, got {motion!r}; a system's is system.reveal()[1]")
    lifted = problem.lifted(motion)
    if isinstance(motion, AbstractLifted):
        return lifted
    try:
        found = program_of(problem, lifted).outvars[0].aval.dtype
    except TypeError as error:  # such as a model's Prediction
        raise UserError(f"{wanted}: {in_words(error, '(state, action, mu)')}") from error
    if jnp.issubdtype(found, jnp.complexfloating):
        raise UserError(f"the motion must return real numbers, got {found}; take their real part")
    return lifted


def check_motion(problem: Problem, motion: Motion) -> Motion:
    """The motion as a function of states and actions.

    Raises if it has the wrong shape, is not finite, or goes beyond ``max_move``; on nodes, if it
    returns no probabilities, at the initial distribution.
    """
    grid, motion = problem.grid, problem.lifted(motion)
    if problem.shocks is not None:
        for number, case in enumerate(problem.under_each_shock()):
            check_motion(case, problem.shocks.under(motion, jnp.asarray(number)))
        return motion
    if problem.on_nodes:
        problem.check_function(motion, "the motion", (grid.target_size,))
        seen = dependence(problem, motion).step
        for step in range(problem.horizon if seen else 1):
            check_probabilities(problem, motion, problem.initial, step)
        return motion
    tried = problem.actions.points(3)
    targets = problem.check_function(motion, "the motion", (grid.dim,), tried)
    moved = np.abs(grid.displacement(grid.centres[:, None], targets))
    check_farthest(problem, moved.max(axis=(0, 1)), np.abs(targets).max(axis=(0, 1)))
    return motion


def check_probabilities(problem: Problem, motion: Motion, mass: Mass, step: int) -> None:
    """Raises unless a motion on nodes returns probabilities, and says for which node and action."""
    grid, actions = problem.grid, problem.actions.by_cell(problem.grid.n_cells)
    at = jnp.asarray(step, jnp.int32)  # not static: compiled once for all steps
    found = np.asarray(_evaluated(grid, mass, motion, actions.astype(mass.dtype), at))

    def place(index: tuple[int, ...]) -> str:
        action = np.asarray(actions[index[:2]]).tolist()
        return f"for {grid.place(index[0])}, the action {action} and step {step}"

    name = "the motion's probabilities of successors"
    remedy = "give numbers of at least 0 that sum to 1"
    if grid.nodes is not None and (listed := grid.nodes.successors) is not None:
        absent = (listed[:, None] < 0) & (np.abs(found) > 0)  # not NaN
        fail_where(
            absent,
            lambda i: f"the motion leads to successor number {i[2]}, which does not exist",
            "give probability zero to what is beyond the end of a node's list",
            place,
        )
    distribution(found, name, remedy, place)


_evaluated = eqx.filter_jit(at_all_cells)


def check_farthest(problem: Problem, farthest: Any, returned: Any = np.inf) -> None:
    """Raises if a motion carries agents too far: it returned small numbers, perhaps no places."""
    if np.any(farthest > np.asarray(problem.max_move) * (1 + 1e-4)):
        remedy = "raise max_move, so that the flow's windows reach"
        if np.all(returned <= np.asarray(problem.max_move)):
            remedy = "a motion returns the new place, such as state + action; is `state +` missing?"
        raise UserError(
            f"the motion carries agents up to {farthest} in one step, farther than the problem's "
            f"max_move {problem.max_move}; {remedy}"
        )


def check_rollout(
    problem: Problem,
    motion: Motion,
    profile: Profile,
    rollout: Rollout,
    misused: Bool[Array, "steps"],
) -> None:
    """Raises if a result is not finite, or at the first step with a `Misuse`."""
    begun = np.arange(problem.horizon) >= problem.steps_done
    wrong = [int(step) for step in np.flatnonzero(np.asarray(misused) & begun)[:1]]
    for step in wrong:
        policy, number = profile.at(step), jnp.asarray(step, dtype=jnp.int32)
        law, targets, found = _misuse(problem, motion, policy, rollout.mass[step], number)
        for cell, choice in np.argwhere(found.actions)[:1].tolist():
            where, action = problem.grid.place(cell), law.actions[cell, choice]
            raise _outside(problem, action, step, where, profile.by_cell)
    if not (np.isfinite(rollout.value) and np.isfinite(rollout.mass).all()):
        why = diagnose(problem, motion, rollout.mass) or (
            "the motion or the reward returned NaN or infinity, or rewards too large to be added "
            "up, for a state, action or distribution that the policy led to"
        )
        raise UserError(f"the episode is not finite: {why}")
    for step in wrong:
        for cell in np.flatnonzero(found.weights)[:1].tolist():
            weights = np.asarray(law.weights[cell])
            raise UserError(
                "the weights of a randomised policy must be non-negative and sum to 1 in every "
                f"cell; at step {step} in the {problem.grid.place(cell)} they sum to "
                f"{weights.sum():.6g} and the lowest is {weights.min():.3g}; normalise them"
            )
        if problem.on_nodes:
            check_probabilities(problem, motion, rollout.mass[step], step)
        else:
            too_far = np.abs(np.asarray(targets))[np.asarray(found.targets)]
            check_farthest(problem, too_far.max(axis=0, initial=0.0))


@eqx.filter_jit
def _misuse(
    problem: Problem, motion: Motion, policy: AbstractPolicy, mass: Mass, step: Array
) -> tuple[ActionLaw, Displacements, Misuse]:
    law = policy.at_cells(problem.grid, mass, step)
    targets = displacements(problem.grid, mass, motion, law.actions, step)
    return law, targets, Misuse.of(problem, mass, law, targets)


def check_moves(problem: Problem, moves: Any, table: bool, step: int | None = None) -> None:
    """Raises if an agent's action is not allowed or its position is not finite.

    Args:
        problem: The problem.
        moves: ``states``, ``actions``, ``next_states`` and ``present`` of an `Episode`, or of one
            step of it; agents under way do not act.
        table: Whether the policy is a table, for the advice.
        step: Number of the step, if there is one only.
    """
    cells = problem.grid.index_of(np.asarray(moves.states))
    outside = ~np.asarray(problem.actions.contains(np.asarray(moves.actions), cells))
    if step is None:
        outside &= np.arange(problem.horizon) >= problem.steps_done
    broken = ~np.isfinite(np.asarray(moves.next_states)).all(axis=-1)
    wrong = (outside | broken) & (True if moves.present is None else np.asarray(moves.present))
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    number = index[1] if step is None else step
    state, action = np.asarray(moves.states[index]), np.asarray(moves.actions[index])
    if outside[index]:
        raise _outside(problem, action, number, f"state {state}", table)
    raise UserError(
        f"an agent's position is not finite: the motion returned NaN or infinity for the state "
        f"{state} and the action {action} at step {number}"
    )


def _outside(problem: Problem, action: Any, step: int, where: str, table: bool) -> UserError:
    """The error for an action that is not in the action space.

    A ``table``, often from a file, was planned for other actions; functions lack a bound.
    """
    remedy = "clip or squash it, for example with jnp.clip or jnp.tanh"
    if table:
        remedy = "the policy was made for other actions: name the options that it was planned for"
    return UserError(
        f"the policy's action {np.asarray(action)} at step {step} in the {where} is outside "
        f"{problem.actions.describe()}; {remedy}"
    )


def check_planned(problem: Problem, motion: Motion, mass: Masses, *values: Any) -> None:
    """Raises unless the figures of a plan are finite, and says why; ``mass`` is its episode's."""
    if all(bool(jnp.isfinite(value)) for value in values):
        return
    why = diagnose(problem, motion, mass) or "check the reward and the motion"
    raise UserError(f"no plan with a finite J and derivatives was found: {why}")


def diagnose(problem: Problem, motion: Motion | None = None, mass: Masses | None = None) -> str:
    """Says where the reward, the motion, a chance or a gradient is not as it must be; else empty.

    Tried are all cells and steps, a few actions, the initial distribution, an even one, and one
    in which all are in one cell. If the distributions ``mass`` of an episode are given, chances of
    trips are looked at along them.
    """
    steps = range(problem.steps_done, problem.horizon)
    if mass is not None and problem.trips is not None:
        for step in steps:
            if not bool(jnp.all(jnp.isfinite(mass[step]))):
                break
            if why := problem.trips.wrong_chance(problem.grid, mass[step], step):
                return why
    functions: dict[str, Callable[..., Any]] = {}
    if not problem.hides_reward:
        functions["the reward"] = problem.reward
    if motion is not None:
        functions["the motion"] = motion
    even = jnp.full_like(problem.initial, 1 / problem.grid.n_cells)
    crowd = jnp.zeros_like(even).at[0].set(1.0)
    masses = {"the initial": problem.initial, "an even": even, "a crowded": crowd}
    for name, function in functions.items():
        for which, tried in masses.items():
            if where := _not_finite(problem, function, tried):
                return (
                    f"{name} {where} and {which} distribution; for logarithms of mu use "
                    "mufield.log_mass, for roots jnp.maximum(mu.here, 1e-6), and keep jnp.where "
                    "away from branches that are not finite"
                )
    if problem.hides_reward:
        return ""
    actions = problem.actions.points(3)
    everywhere = jnp.broadcast_to(actions, (problem.grid.n_cells, *actions.shape))
    paid = at_all_cells(problem.grid, even, problem.reward, everywhere, 0)
    largest = float(jnp.max(jnp.abs(paid)))
    # Larger rewards overflow when those of an episode are added up and compared.
    if largest <= float(jnp.finfo(even.dtype).max) / (1e3 * problem.paid_steps):
        return ""
    return f"the sum of the rewards overflows (up to {largest:.3g} each); divide them by a constant"


def _not_finite(problem: Problem, function: Callable[..., Any], mass: Mass) -> str:
    """Where a function of one agent or its derivative is not finite; empty if nowhere."""
    grid, dtype = problem.grid, mass.dtype
    centres, actions = jnp.asarray(grid.centres, dtype=dtype), problem.actions.points(3)

    def total(state: Any, action: Any, mass: Any, step: Any) -> Any:
        mu = mean_field_at(grid, mass, state, step)
        return jnp.sum(jnp.asarray(function(state, action, mu), dtype=dtype))

    # Derivatives by mu, one for each pair of cells, would take minutes on large maps.
    wanted = (0, 1, 2) if grid.n_cells <= 2000 else (0, 1)

    @jax.jit
    def look(step: Any) -> Any:
        def one(state: Any, action: Any) -> Any:
            value, slopes = jax.value_and_grad(total, wanted)(state, action, mass, step)
            return [jnp.all(jnp.isfinite(each)) for each in (value, *slopes)]

        return jax.vmap(lambda state: jax.vmap(lambda action: one(state, action))(actions))(centres)

    slopes = [f"has no finite derivative by {by}" for by in ("the state", "the action", "mu")]
    for step in range(problem.steps_done, problem.paid_steps):
        for fault, fine in zip(["is NaN or infinite", *slopes], look(step), strict=False):
            if not np.all(fine):
                cell, choice = (int(i) for i in np.argwhere(~np.asarray(fine))[0])
                action = np.asarray(actions[choice]).tolist()
                return f"{fault} in the {grid.place(cell)}, at step {step}, for the action {action}"
    return ""
