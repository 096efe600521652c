"""Which settings of a learner earn most? A study with Optuna.

    pip install "mufield" "optuna>=5"
    python examples/optuna_study.py --trials 20 --processes 2

Optuna proposes the settings, keeps every trial in one file, stops trials that do worse than most,
and says which setting matters. The same command goes on with the study. Start it on several
machines that see the file, or give `work` to `ray.remote`, and they share the trials;
`optuna-dashboard study.log` shows them while they run.
"""

import argparse
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage

import mufield as mf

SEEDS = (0, 1, 2)


def objective(trial: optuna.Trial, episodes: int, horizon: int) -> float:
    """Mean J of the last third of the episodes, over all seeds."""
    rooms = mf.make("four-rooms", horizon=horizon)
    beta = trial.suggest_float("beta", 0.5, 8.0, log=True)
    optimism = {"hallucinated": mf.Hallucinated(), "greedy": mf.Greedy()}
    learner = mf.M3UCRL(
        rooms.problem,
        mf.GaussianProcess(beta=beta),
        mf.MirrorPlanner(points=trial.suggest_int("points", 3, 7, step=2)),
        optimism=optimism[trial.suggest_categorical("optimism", [*optimism])],
    )
    earned = []
    for seed in SEEDS:
        result = mf.learn(rooms, learner, episodes=episodes, seed=seed, progress=False)
        values = [row.value for row in result.metrics]
        earned.append(statistics.fmean(values[-max(1, episodes // 3) :]))
        trial.report(statistics.fmean(earned), seed)
        if trial.should_prune():  # the others earned more with the same seeds
            raise optuna.TrialPruned
    return statistics.fmean(earned)


def open_study(file: str) -> optuna.Study:
    """The study in a file, which is made if it does not exist."""
    storage = JournalStorage(JournalFileBackend(file))
    return optuna.create_study(
        storage=storage, study_name="four-rooms", direction="maximize", load_if_exists=True
    )


def work(file: str, trials: int, episodes: int, horizon: int) -> None:
    """Computes some trials of a study; any number of processes and machines may do so at once."""
    mf.enable_compilation_cache()
    study = open_study(file)
    study.optimize(lambda trial: objective(trial, episodes, horizon), n_trials=trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", default="study.log", help="file with all trials")
    parser.add_argument("--trials", type=int, default=20, help="number of trials for each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=6, help="episodes of a run")
    parser.add_argument("--horizon", type=int, default=10, help="moves of an episode")
    options = parser.parse_args()
    task = (options.study, options.trials, options.episodes, options.horizon)
    # Spawned, because JAX has threads, which a fork does not survive.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=spawn) as pool:
        for each in [pool.submit(work, *task) for _ in range(options.processes)]:
            each.result()
    study = open_study(options.study)
    print(f"best J {study.best_value:.2f} with {study.best_params}")
    if len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE])) > 1:
        print("importance:", optuna.importance.get_param_importances(study))


if __name__ == "__main__":
    main()
