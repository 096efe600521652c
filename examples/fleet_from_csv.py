"""A fleet of taxis from a table of its trips: where should empty vehicles go?

    python examples/fleet_from_csv.py                # made-up trips of a small town, a minute
    python examples/fleet_from_csv.py trips.csv      # yours; columns as of mf.fleet.read_trips

How vehicles get on in traffic is unknown: fifty tracked vehicles find out, within a few mornings.
"""

import csv
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import mufield as mf

STEPS, MINUTES, LOAD = 6, 10, 0.6  # from 7:00; passengers in a step as a share of the fleet


def write_trips(path: Path) -> None:
    """Made-up trips between three quarters of a small town, most of them to the third."""
    random = np.random.default_rng(0)
    quarters = np.array([[-73.990, 40.730], [-73.985, 40.745], [-73.975, 40.755]])
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        ends = ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]
        rows.writerow(["time", *ends])
        for _ in range(2_000):
            chosen = quarters[random.choice(3, size=2, p=[0.2, 0.2, 0.6])]
            day, hour, minute = random.integers([2, 6, 0], [7, 10, 60])
            time = f"2026-03-{day:02d}T{hour:02d}:{minute:02d}:00"
            rows.writerow([time, *(chosen + 0.004 * random.normal(size=(2, 2))).ravel()])


def town(path: Path) -> mf.Problem:
    """The problem of a morning: known demand and destinations, unknown motion."""
    records = mf.fleet.read_trips(path)
    city = records.city(cell=500, turn=29, least=10)  # cells with traffic; the rest is wall
    trips = records.on(range(5)).model(city, start=7.0, steps=STEPS, minutes=MINUTES)
    for note in trips.notes:  # of the records and of the map, too
        print("note:", note)
    passengers = mf.fleet.Passengers(city.grid, trips.demand_per_vehicle(LOAD))
    return mf.Problem(
        space=city,
        horizon=STEPS,
        actions=mf.Box(-1.0, 1.0, dim=2),
        reward=mf.fleet.Earnings(passengers, pay=1.0, cost=0.05),
        trips=mf.fleet.Trips(passengers, trips.matrix),
        initial=trips.ended,
        noise=0.1,
        max_move=(0.7, 1.0),  # km in a step, at most
    )


def traffic(state, action, mu):  # stands for the streets: your fleet does not need it
    return state + jnp.array([0.45, 0.8]) * action / (1.0 + 2.0 * mu.here)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "trips.csv")
    if not path.exists():
        write_trips(path)
    problem = town(path)
    demand = float(np.sum(problem.trips.chance.demand))
    print(f"{problem.grid.n_cells} cells; {demand:.2f} passengers for each vehicle in the morning")

    fleet = mf.SimulatedSystem(problem, traffic)
    stay = fleet.evaluate(lambda state, mu, step: jnp.zeros(2))
    print(f"J = {float(stay.value):.2f} if empty vehicles stay where they are")
    learner = mf.M3UCRL(problem, planner=mf.MirrorPlanner(points=5))
    result = mf.learn(fleet, learner, episodes=3, agents=50, seed=0)
    for row in result.metrics:
        print(f"morning {row.episode}: J = {row.value:.2f}")

    # One morning anew from where the fleet is today, after the third step.
    state, plan = result.state, learner.ask(result.state)
    now = fleet.run(plan.profile, jax.random.key(1), agents=50).mass[3]
    rest = learner.replan(state, plan, now, 3)
    print(f"J = {float(rest.value):.2f} expected of the steps from 7:30 on, planned anew")
    mf.save_policy("fleet.safetensors", rest.profile, info={"task": "town, from 7:30"})
