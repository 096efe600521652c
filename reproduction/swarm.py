"""Figures of the swarm: rewards, the ergodic state, and flows from other distributions."""

from typing import Any

import numpy as np

from mufield import viz
from mufield.environments.swarm import closed_form_density, closed_form_policy
from mufield.space.measure import from_density, wasserstein

from . import workload
from .outcomes import Outcome, episode_policy, planned_policy, play
from .panels import Panel, panel_figure
from .paper import Cases, Paper
from .results import Drawn, Results


def draw_rewards(results: Results) -> Drawn:
    """J over the episodes, from the ergodic distribution; the second row shows it near the end."""
    rows: list[list[Panel]] = [[], []]
    for motion in Cases.motions:
        run, plan = workload.swarm_jobs(results.budget, motion, "ergodic")
        values, known = results.figures(run)["values"], results.figures(plan)["value"]
        shared: dict[str, Any] = {
            "curves": {"M3-UCRL": viz.Curve(values, 1 + np.arange(len(values)), place=0)},
            "x_label": "episode",
            "y_label": "total reward J",
            "references": {"known motion": known},
        }
        rows[0].append(Panel(**shared, title=f"f = {Cases.motions[motion]}"))
        late = values[len(values) // 2 :]
        # The second row begins 1.5 times the late episodes' range below the known plan.
        margin = 1.5 * max(known - float(late.min()), 0.01 * abs(known))
        near = (known - margin, max(known, float(values.max())) + 0.2 * margin)
        rows[1].append(Panel(**shared, title="near the known plan", y_range=near))
    title = results.heading("Swarm: reward over the episodes of learning, from μ*")
    figure = panel_figure(rows, title=title, height=3.0)
    return Drawn(results.save(figure, "swarm-rewards"))


def draw_actions(results: Results) -> Drawn:
    """Actions in the middle of the episode, where the population is in the ergodic state."""
    panels: list[Panel] = []
    for motion in Cases.motions:
        learned, known = _pair(results, motion, "ergodic")
        points, step = learned.grid.centres[:, 0], _middle(learned)
        ours, theirs = (np.asarray(one.mean_actions[step, :, 0]) for one in (learned, known))
        curves = _three(points, ours, theirs, 2 * np.pi * np.cos(2 * np.pi * points))
        title = f"f = {Cases.motions[motion]}, h = {step}"
        panels.append(Panel(curves, "position s", "action a", title=title, whole=False))
    title = results.heading("Swarm: actions in the ergodic state")
    return Drawn(results.save(panel_figure([panels], title=title), "swarm-actions"))


def draw_distributions(results: Results) -> Drawn:
    """Distributions in the middle of the episode."""
    panels: list[Panel] = []
    numbers: dict[str, Any] = {}
    for motion in Cases.motions:
        learned, known = _pair(results, motion, "ergodic")
        step = _middle(learned)
        target = from_density(learned.grid, closed_form_density(learned.grid.centres[:, 0]))
        numbers[motion] = {
            "step": step,
            "w1_learned_known": _w1(learned, learned.mass[step], known.mass[step]),
            "w1_known_closed": _w1(known, known.mass[step], target),
        }
        panels.append(_densities(learned, known, step, f"f = {Cases.motions[motion]}, h = {step}"))
    numbers["closed_form_rate"] = _closed_form_rate({})
    numbers["closed_form_rate_fine"] = _closed_form_rate(results.budget.fine_swarm)
    title = results.heading("Swarm: distributions in the ergodic state")
    figure = panel_figure([panels], title=title)
    return Drawn(results.save(figure, "swarm-distributions"), numbers)


def draw_flow(results: Results) -> Drawn:
    """The flow from two other distributions, learned and known; one figure for each motion."""
    files: list[Any] = []
    numbers: dict[str, Any] = {}
    for motion in Cases.motions:
        rows = []
        for start in ("normal", "uniform"):
            learned, known = _pair(results, motion, start)
            looks = [step for step in (0, 4, 8, 16, 100, 200) if step < len(learned.mass)]
            rows.append(
                [
                    _densities(learned, known, step, f"{Cases.starts[start]}, h = {step}")
                    for step in looks
                ]
            )
            early = min(Paper.early, len(learned.mass) - 1)
            numbers[f"{motion}-{start}"] = {
                "step": early,
                "w1_early": _w1(learned, learned.mass[early], known.mass[early]),
                "w1_end": _w1(learned, learned.mass[-1], known.mass[-1]),
            }
        title = results.heading(f"Swarm: flow over one episode, f = {Cases.motions[motion]}")
        figure = panel_figure(rows, title=title, width=2.9, height=2.7, share_y=True)
        name = "swarm-flow" if motion == "free" else f"swarm-flow-{motion}"
        files += results.save(figure, name)
    return Drawn(tuple(files), numbers)


def _pair(results: Results, motion: str, start: str) -> tuple[Outcome, Outcome]:
    """The last episode of the run, and the plan with known motion."""
    run, plan = workload.swarm_jobs(results.budget, motion, start)
    last = episode_policy(results.path(run), run.settings["episodes"])
    return play(run.settings, last), play(plan.settings, planned_policy(results.path(plan)))


def _closed_form_rate(options: dict[str, Any]) -> float:
    """Mean reward of a step under the closed-form policy, from the closed-form density."""
    system = {"environment": "swarm", "options": {"initial": "ergodic"} | options}
    closed = play(system, closed_form_policy)
    return closed.value / closed.profile.horizon


def _middle(outcome: Outcome) -> int:
    return outcome.profile.horizon // 2


def _densities(learned: Outcome, known: Outcome, step: int, title: str) -> Panel:
    grid = learned.grid
    points = grid.centres[:, 0]
    ours, theirs = (np.asarray(one.mass[step]) / grid.cell_volume for one in (learned, known))
    return Panel(
        _three(points, ours, theirs, closed_form_density(points)),
        "position s",
        "density μ",
        title=title,
        y_range=(0.0, None),
        whole=False,
    )


def _three(x: Any, learned: Any, known: Any, closed: Any) -> dict[str, viz.Curve]:
    return {
        "M3-UCRL": viz.Curve(learned, x, place=0, marked=False),
        "known motion": viz.Curve(known, x, place=1, dashes="--", marked=False),
        "closed form, continuous time": viz.Curve(closed, x, place=2, dashes=":", marked=False),
    }


def _w1(outcome: Outcome, one: Any, other: Any) -> float:
    return float(wasserstein(outcome.grid, one, other))
