"""hpcsched: inside one Slurm allocation, by a fixed deadline, the best configuration, trained as far as it can be."""

__version__ = "0.1.0"
