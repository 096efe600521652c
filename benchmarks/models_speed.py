"""How fast the models are fitted, and how fast they predict inside a plan.

The ensemble: all members are trained on 600 transitions of the four rooms in one compiled
call. It is at least 4 times faster than the same training loop with one jitted member at a time,
that is, a loop over members and over steps around the jitted step of one member. All sides see
the same starts, targets and batches, and end with the same members up to rounding.

A stronger rival is shown, not claimed: one member's whole training in a compiled call, once each.
It has no calls left to save, and the arithmetic is the same; what remains to be gained is what
members share.

The Gaussian processes' claims are explained in `_gp_speed.py`.

Run ``python benchmarks/models_speed.py``, or with ``--quick`` for less than a minute.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _gp_speed import compare_sizes, compare_with_exact
from _report import Report, Timing, duration, parse_quick, time_side_by_side

import mufield
from mufield.models.data import Transitions
from mufield.models.ensemble import DeepEnsemble, EnsembleInputs, member_views, train
from mufield.models.networks import (
    Layout,
    Member,
    Sample,
    distance_from,
    draw_members,
    negative_log_likelihood,
)

FASTER_THAN_LOOP = 4.0
EPISODES = 30
TRANSITIONS = 600
SAME_MEMBERS = 0.02
"""Rounding grows over five hundred steps, most where the sign of a gradient of zero flips."""

KEY = jax.random.key(1)


class OneByOne(NamedTuple):
    """What each member starts from, and what it sees."""

    starts: list[Member]
    targets: list[jax.Array]
    weights: list[jax.Array]
    batches: jax.Array


def prepare(family: DeepEnsemble, data: EnsembleInputs) -> OneByOne:
    """The same random draws that the package makes, taken apart."""
    start_key, member_key, batch_key = jax.random.split(KEY, 3)
    layout = Layout(data.features.parts, family.width, data.targets.shape[1])
    starts = draw_members(family.members, layout, family.prior, start_key, data.inputs.dtype)
    weights, targets = member_views(family, data, member_key)
    shape = (family.steps, family.batch_size)
    return OneByOne(
        starts=[jax.tree.map(lambda leaf, i=i: leaf[i], starts) for i in range(family.members)],
        targets=list(targets),
        weights=list(weights),
        batches=jax.random.randint(batch_key, shape, 0, data.count),
    )


def step_of_one(family: DeepEnsemble, data: EnsembleInputs) -> tuple[Callable[..., Any], Any]:
    """One step of one member, and the optimiser's first state."""
    optimiser = optax.adam(optax.cosine_decay_schedule(family.learning_rate, family.steps))
    noise = data.scaled_noise
    count = data.count.astype(data.inputs.dtype)

    def loss(member: Member, anchor: Member, sample: Sample) -> jax.Array:
        total = negative_log_likelihood(member, sample, noise) * count / family.batch_size
        return (total + distance_from(anchor, member, family.prior)) / count

    def step(
        carry: tuple[Member, Any],
        anchor: Member,
        targets: jax.Array,
        weights: jax.Array,
        chosen: jax.Array,
    ) -> tuple[Member, Any]:
        member, state = carry
        sample = Sample(data.inputs[chosen], targets[chosen], data.side[chosen], weights[chosen])
        gradient = jax.grad(loss)(member, anchor, sample)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(member, updates), state

    return step, optimiser.init


def loop_over_steps(family: DeepEnsemble, data: EnsembleInputs) -> Callable[[], list[Member]]:
    """Members one after the other, each in a loop around its jitted step."""
    step, first_state = step_of_one(family, data)
    jitted, inputs = jax.jit(step), prepare(family, data)
    batches = list(inputs.batches)  # cut beforehand, or cutting would take most of the time

    def run() -> list[Member]:
        members = []
        for start, targets, weights in zip(*inputs[:3], strict=True):
            carry = (start, first_state(start))
            for chosen in batches:
                carry = jitted(carry, start, targets, weights, chosen)
            members.append(jax.block_until_ready(carry[0]))
        return members

    return run


def loop_over_members(family: DeepEnsemble, data: EnsembleInputs) -> Callable[[], list[Member]]:
    """Members one after the other, each trained in one compiled call."""
    step, first_state = step_of_one(family, data)
    inputs = prepare(family, data)

    @jax.jit
    def whole(start: Member, targets: jax.Array, weights: jax.Array) -> Member:
        def body(carry: Any, chosen: jax.Array) -> tuple[Any, None]:
            return step(carry, start, targets, weights, chosen), None

        first = (start, first_state(start))
        member: Member = jax.lax.scan(body, first, inputs.batches)[0][0]
        return member

    def run() -> list[Member]:
        return [jax.block_until_ready(whole(*each)) for each in zip(*inputs[:3], strict=True)]

    return run


def compare_training(report: Report, quick: bool) -> None:
    """Times the training of all members at once and of one at a time."""
    system = mufield.make("four-rooms")
    policy = mufield.random_policy(system.problem)
    keys = jax.random.split(jax.random.key(0), EPISODES)
    episodes = [system.run(policy, key) for key in keys]
    transitions = Transitions.of(system.problem, episodes)
    if len(transitions) != TRANSITIONS:
        sys.exit(f"expected {TRANSITIONS} transitions, got {len(transitions)}")
    family = DeepEnsemble()
    data = family.prepare(transitions)

    together = partial(train, family, data, KEY)
    rivals = {
        "a loop over members and steps around a jitted step": loop_over_steps(family, data),
        "a loop over members, each in one compiled call": loop_over_members(family, data),
    }
    sides = {"together": lambda: jax.block_until_ready(together()), **rivals}
    times = time_side_by_side(sides, rounds=2 if quick else 7)
    report.row(
        f"ensemble, {family.members} members, {TRANSITIONS} transitions, {family.steps} steps",
        show(times["together"]),
    )
    for name, rival in rivals.items():
        ratio = times[name].best / times["together"].best
        report.row(f"  {name}", f"{show(times[name])}, {ratio:.1f} x")
        report.row("    relative difference of the members", f"{check_same(together(), rival):.1e}")
    report.claim(
        "ensemble: fitting, times faster than one jitted member at a time",
        times[next(iter(rivals))].best / times["together"].best,
        FASTER_THAN_LOOP,
        side="at least",
    )


def check_same(members: Member, rival: Callable[[], list[Member]]) -> float:
    """How far the members are apart; exits if that is more than rounding."""
    theirs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rival())
    pairs = zip(jax.tree.leaves(members), jax.tree.leaves(theirs), strict=True)
    gap = max(
        float(jnp.linalg.norm(ours - other) / (jnp.linalg.norm(other) + 1e-6))
        for ours, other in pairs
    )
    if not (np.isfinite(gap) and gap < SAME_MEMBERS):
        sys.exit(f"the members differ by {gap:.1e} from those that were trained one at a time")
    return gap


def show(timing: Timing) -> str:
    """Fastest and middle round."""
    return f"{duration(timing.best)} (median {duration(timing.median)})"


def main() -> None:
    """Runs all comparisons."""
    quick = parse_quick(__doc__)
    report = Report("models")
    compare_training(report, quick)
    compare_sizes(report, quick)
    compare_with_exact(report, quick)
    report.show()


if __name__ == "__main__":
    main()
