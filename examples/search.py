"""Search for hyperparameters with Optuna, as many trainings at a time as there are cores.

pip install cputrain optuna
python examples/search.py
"""

import argparse
from concurrent.futures import FIRST_COMPLETED, wait

import optuna
import torch

from cputrain import Many


def train(lr, width, steps):
    """Fit the sine of a number; return the loss on other numbers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        x = 6 * torch.rand(64, 1) - 3
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sin()).backward()
        optimizer.step()
    x = torch.linspace(-3, 3, 200)[:, None]
    with torch.no_grad():
        return torch.nn.functional.mse_loss(model(x), x.sin()).item()


def main():
    """Ask for a trial for each core, and tell the loss of those that have ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    running = {}
    with Many() as many:
        for number in range(arguments.trials + many.num_cores):
            if number < arguments.trials:
                trial = study.ask()
                lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
                width = trial.suggest_int("width", 4, 64)
                running[many.submit(train, lr, width, arguments.steps)] = trial
            if len(running) >= many.num_cores or number >= arguments.trials:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    study.tell(running.pop(future), future.result())
    print(f"best of {len(study.trials)}: loss {study.best_value:.5f} with {study.best_params}")


if __name__ == "__main__":
    main()
