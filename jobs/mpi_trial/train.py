"""Linear regression by gradient descent, its rows shared out over MPI ranks: the least MPI trial.

python train.py                              alone, with the defaults below
mpiexec -n 4 python train.py                 four ranks, no hpcsched
hpcsched run experiment.toml                 many configurations, by the deadline
"""

from typing import Any

import numpy as np
from mpi4py import MPI

import hpcsched

NUM_ROWS, NUM_COLUMNS, STEPS_AN_ITERATION = 20_000, 64, 20


class Descent:
    """The same weights on every rank; the gradient is summed over all of them."""

    def __init__(self, comm: MPI.Comm, learning_rate: float, momentum: float) -> None:
        self.comm = comm
        self.learning_rate, self.momentum = learning_rate, momentum
        random = np.random.default_rng(0)  # the same rows at any number of ranks
        rows = random.normal(size=(NUM_ROWS, NUM_COLUMNS)) * np.linspace(0.2, 1.5, NUM_COLUMNS)
        targets = rows @ random.normal(size=NUM_COLUMNS) + 0.1 * random.normal(size=NUM_ROWS)
        self.rows, self.targets = rows[comm.rank :: comm.size], targets[comm.rank :: comm.size]
        self.weights, self.velocity = np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS)

    def step(self) -> None:
        gradient = self.rows.T @ (self.rows @ self.weights - self.targets)
        self.comm.Allreduce(MPI.IN_PLACE, gradient)
        self.velocity = self.momentum * self.velocity - self.learning_rate * gradient / NUM_ROWS
        self.weights += self.velocity

    def error(self) -> float:
        residual = self.rows @ self.weights - self.targets
        return float(np.sqrt(self.comm.allreduce(residual @ residual) / NUM_ROWS))

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "velocity": self.velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.velocity = state["weights"].copy(), state["velocity"].copy()


def main() -> None:
    trial = hpcsched.mpi_trial(learning_rate=0.3, momentum=0.9, max_iterations=10)
    descent = Descent(trial.comm, trial.config["learning_rate"], trial.config["momentum"])
    trial.track(descent=descent)
    for _ in trial:
        for _ in range(STEPS_AN_ITERATION):
            descent.step()
        trial.report(error=descent.error())


if __name__ == "__main__":
    main()
