"""Your own system: write the motion and the reward of one agent, learn the best policy for all.

    python examples/own_system.py        # about a minute; leaves own_system.png

A crowd wants to reach the right end of a hall with two pillars. Crowds slow agents down, which
the learner has to find out: it sees the `Problem`, never the motion.
"""

import jax.numpy as jnp

import mufield as mf
from mufield import viz

grid = mf.Grid.from_map(
    """
    ........
    .##..##.
    ........
    """,
    cell_size=0.5,
)


def motion(state, action, mu):  # unknown to the learner
    return state + 0.5 * action / (1.0 + 2.0 * mu.here)


def reward(state, action, mu):  # go right, avoid crowds, save effort
    return state[0] - mf.log_mass(mu.here) - 0.1 * jnp.sum(action**2)


problem = mf.Problem(
    space=grid,
    actions=mf.Box(-1.0, 1.0, dim=2),
    reward=reward,
    horizon=12,
    initial=mf.point_mass(grid, 0, 0),
    noise=0.1,
    max_move=0.5,
)

if __name__ == "__main__":
    system = mf.SimulatedSystem(problem, motion)
    rest = system.evaluate(lambda state, mu, step: jnp.zeros(2))
    print(f"agents at rest earn {float(rest.value):.2f}")

    result = mf.learn(system, episodes=5, agents=5, seed=0)
    for row in result.metrics:
        print(f"episode {row.episode}: J = {row.value:.2f}")

    best = result.best()  # the policy to use: planned without optimism on all data
    print(f"the model expects {best.expected:.2f}, between {best.lower:.2f} and {best.upper:.2f}")
    print(f"it earns {float(system.evaluate(best.profile).value):.2f}")
    mf.save_policy("own_system.safetensors", best.profile, info={"task": "hall"})

    masses = system.evaluate(best.profile).mass
    viz.field_figure(grid, masses, steps=[0, 3, 6, 12]).savefig("own_system.png", dpi=120)
