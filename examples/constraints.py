"""A limit that must hold while nobody knows the motion: a door that may not be overcrowded.

    python examples/constraints.py        # about two minutes

First with known motion: the constrained optimum, and a proof of how good it is. Then learned, with
every episode inside the limit.
"""

import jax.numpy as jnp

import mufield as mf

grid = mf.Grid.from_map(
    """
    ...#...
    .......
    ...#...
    """
)
door = (3, 1)
problem = mf.Problem(
    space=grid,
    actions=mf.Box(-1.0, 1.0, dim=2),
    reward=lambda state, action, mu: -mf.log_mass(mu.here),  # spread out
    horizon=12,
    initial=mf.point_mass(grid, 0, 1),
    noise=0.2,
    max_move=1.0,
    constraints=[mf.constraints.mass_at_most(grid, [door], 0.05, name="agents in the door")],
)


def motion(state, action, mu):  # unknown to the learner: the floor slopes
    return state + 0.8 * action + jnp.array([0.1, 0.0])


if __name__ == "__main__":
    system = mf.SimulatedSystem(problem, motion)
    moves = mf.MoveFlow(*system.reveal(), problem.actions.points(5))
    optimum = mf.MirrorAscent(sweeps=300).solve(moves)
    print(
        f"known motion: J = {float(optimum.value):.2f}, at most {float(optimum.upper):.2f} is "
        f"possible inside the limit; least margin {float(optimum.margins.min()):.1%} of it"
    )

    learner = mf.M3UCRL(problem, planner=mf.MirrorPlanner(points=5))
    result = mf.learn(system, learner, episodes=6, agents=10, seed=0)
    for row in result.metrics:
        margin = f"least margin {row.margin:.1%} of the limit"
        print(f"episode {row.episode}: J = {row.value:.2f}, {margin}")
