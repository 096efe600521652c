"""A black box between ask and tell: your simulator, your robots, your fleet.

    python examples/ask_tell.py        # about a minute

The black box here is a swarm of 2,000 robots in plain NumPy, on a field with a wind that nobody
told the learner about. Ten of the robots are tracked: their moves are all that it learns from.
"""

import jax
import jax.numpy as jnp
import numpy as np

import mufield as mf

ROBOTS, TRACKED, STEPS = 2_000, 10, 10
grid = mf.Grid.box((0.0, 0.0), (4.0, 4.0), (8, 8))
problem = mf.Problem(
    space=grid,
    actions=mf.Box(-1.0, 1.0, dim=2),
    reward=lambda state, action, mu: -mf.log_mass(mu.here) - 0.5 * jnp.sum(action**2),
    horizon=STEPS,
    initial=mf.point_mass(grid, 0, 0),
    noise=0.1,  # standard deviation of a robot's step
    max_move=0.8,  # no robot gets farther in a step, on either axis
)


class Swarm:
    """The black box: it is handed actions and gives back positions."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.places = self.random.uniform(0.0, 0.5, size=(ROBOTS, 2))

    def move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the robots are then, and on which axes the fence stopped them."""
        wind = np.stack([0.2 * np.sin(self.places[:, 1]), np.zeros(ROBOTS)], axis=1)
        aimed = self.places + 0.6 * actions + wind + 0.1 * self.random.normal(size=(ROBOTS, 2))
        self.places = np.clip(aimed, 0.0, 4.0)
        return self.places, self.places != aimed


def run_episode(profile: mf.Profile, seed: int) -> mf.Episode:
    """Drives all robots by a policy for an episode, and writes down what was seen."""
    swarm, seen = Swarm(seed), []
    masses = [mf.histogram(grid, swarm.places)]
    rewards = []
    for step in range(STEPS):
        before, keys = swarm.places, jax.random.split(jax.random.key(1000 * seed + step), ROBOTS)
        mass = masses[-1]
        here = mass[grid.index_of(jnp.asarray(before))]

        def act(state, mass_here, key, mass=mass, step=step):
            mu = mf.MeanField(mass=mass, here=mass_here, grid=grid, step=step)
            action = profile.at(step).law(state, mu).sample(key)
            return action, problem.reward(state, action, mu)

        actions, earned = jax.vmap(act)(jnp.asarray(before), here, keys)
        after, stopped = swarm.move(np.asarray(actions))
        seen.append([rows[:TRACKED] for rows in (before, actions, after, stopped)])
        masses.append(mf.histogram(grid, after))
        rewards.append(earned.mean())
    states, actions, next_states, stopped = (
        jnp.stack(rows, axis=1) for rows in zip(*seen, strict=True)
    )
    return mf.Episode(states, actions, next_states, stopped, jnp.stack(masses), jnp.stack(rewards))


if __name__ == "__main__":
    learner = mf.M3UCRL(problem)
    state = learner.init(jax.random.key(0))
    for episode_number in range(4):
        plan = learner.ask(state)  # the policy to run
        episode = run_episode(plan.profile, seed=episode_number)
        state = learner.tell(state, episode, plan)  # learns from the tracked robots
        print(
            f"episode {episode_number + 1}: {float(plan.value):.2f} expected, "
            f"{float(episode.value):.2f} realised"
        )
    best = learner.best(state)
    used = run_episode(best.profile, seed=99)
    print(f"the policy to use: {best.expected:.2f} expected, {float(used.value):.2f} realised")
