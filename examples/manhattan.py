"""A fleet: Manhattan's taxis learn where empty vehicles should drive on a weekday's morning.

    python examples/manhattan.py --out demo-fleet     # about two minutes; pictures and a film

Passengers are those of public records; how vehicles get on in traffic is invented, and unknown to
the learner, which tracks 50 vehicles. Beside it: vehicles that stay where passengers left, those
that go where passengers are near by, and a plan that knows the motion.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import mufield as mf
from mufield import viz
from mufield.fleet import stay, towards_demand

STAYING = "stay where passengers left"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-fleet"))
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--horizon", type=int, default=12, help="steps of ten minutes")
    given = parser.parse_args()
    taxis = mf.make("manhattan", horizon=given.horizon, load=0.6, start=7.0)
    problem = taxis.problem
    planner = mf.MirrorPlanner(points=5, sweeps=40)
    learner = mf.M3UCRL(problem, planner=planner)
    state = learner.init(jax.random.key(0))
    for day in range(given.days):
        plan = learner.ask(state)
        episode = taxis.run(plan.profile, jax.random.key(day), agents=50)
        state = learner.tell(state, episode, plan)
        print(f"day {day + 1}: J = {float(episode.value):.3f}, expected {float(plan.value):.3f}")
    learned = learner.best(state).profile  # the policies of days explore, too
    moves = mf.MoveFlow(*taxis.reveal(), problem.actions.points(planner.points))
    policies = {
        STAYING: stay(problem),
        "go towards demand": towards_demand(problem),
        "learned": learned,
        "known motion": mf.MirrorAscent(80, bound=False).solve(moves).profile,
    }
    masses = {name: np.asarray(taxis.evaluate(each).mass) for name, each in policies.items()}
    demand = np.asarray(problem.trips.chance.demand, dtype=float)
    served = {name: np.minimum(mass[:-1], demand) for name, mass in masses.items()}
    for name, each in served.items():
        print(f"{name}: {each.sum() / demand.sum():.1%} of passengers served")
    share = served["learned"].sum() / served["known motion"].sum()
    print(f"learned serves {share:.1%} of what known motion serves")
    arrows = np.asarray(taxis.reveal()[0].mean_actions(learned, masses["learned"]))
    draw(given.out, problem, demand, masses, served, arrows)


def draw(out, problem, demand, masses, served, arrows) -> None:
    """Maps at half-time, who is served over the morning, and a film."""
    out.mkdir(parents=True, exist_ok=True)
    hours = 7.0 + np.arange(problem.horizon + 1) / 6
    middle = problem.horizon // 2
    at = f"at {viz.time_of_day(hours[middle])}"
    labels = viz.map_labels(problem.city)
    shown = {"passengers": demand, "all stay": masses[STAYING], "learned": masses["learned"]}
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    for (name, each), axes in zip(shown.items(), figure.subplots(1, 3), strict=True):
        drives = arrows[middle] if name == "learned" else None
        title = f"{name}, {at}"
        viz.draw_field(axes, problem.grid, each[middle], arrows=drives, title=title, labels=labels)
    figure.savefig(out / "fleet.png", dpi=120)
    curves = {
        name: viz.Curve(each.sum(1) / demand.sum(1), hours[:-1], place=place)
        for place, (name, each) in enumerate(served.items())
    }
    served = viz.curve_figure(
        curves, x_label="hour of the day", y_label="share of passengers served", whole=False
    )
    served.savefig(out / "served.png", dpi=120)
    flows = [viz.NamedFlow("all stay", masses[STAYING])]
    flows += [viz.NamedFlow("learned", masses["learned"], arrows)]
    titles = [f"vehicles at {viz.time_of_day(h)} (arrows: mean drive of empty ones)" for h in hours]
    film = viz.animate_flow(out / "film.mp4", problem.grid, flows, titles=titles, labels=labels)
    print(f"wrote {film}, {out / 'fleet.png'}, {out / 'served.png'}")


if __name__ == "__main__":
    main()
