"""Makes the data: decaying two-dimensional turbulence in a periodic box, by a pseudo-spectral solver.

    python flow.py flow.h5 [--flows 96] [--side 64]

The vorticity w of an incompressible flow obeys  dw/dt + u . grad w = nu lap w,  with the velocity u = (dpsi/dy, -dpsi/dx) of
the stream function, lap psi = -w. Derivatives are exact in Fourier space; the product is made in real space and cut to two
thirds of the wave numbers, so that it cannot fold back (Orszag 1971). Time steps are of Runge and Kutta's second order.

flow.h5: `vorticity` (flows, snapshots, side, side) of float32, one chunk a snapshot, and what it was made with as attributes.
"""

import argparse
import os
from pathlib import Path

import h5py
import numpy as np

NUM_SNAPSHOTS = 20
STEPS_A_SNAPSHOT = 10
TIME_STEP, VISCOSITY = 0.02, 1e-3


class Solver:
    def __init__(self, side: int) -> None:
        wave = np.fft.fftfreq(side, 1 / side)
        self.kx, self.ky = wave[:, None], np.fft.rfftfreq(side, 1 / side)[None, :]
        self.square = self.kx**2 + self.ky**2
        self.inverse = 1 / np.where(self.square == 0, 1, self.square)
        self.kept = (abs(self.kx) < side / 3) & (self.ky < side / 3)
        self.side = side

    def begin(self, random: np.random.Generator) -> np.ndarray:
        """A random flow whose energy lies around wave number 4, of vorticity 4 on average."""
        noise = np.fft.rfft2(random.normal(size=(self.side, self.side)))
        size = np.sqrt(self.square)
        spectrum = noise * size**3 * np.exp(-((size / 4) ** 2)) * self.kept
        field = np.fft.irfft2(spectrum, s=(self.side, self.side))
        return spectrum * 4 / np.sqrt((field**2).mean())

    def slope(self, spectrum: np.ndarray) -> np.ndarray:
        def real(values: np.ndarray) -> np.ndarray:
            return np.fft.irfft2(values, s=(self.side, self.side))

        stream = spectrum * self.inverse
        along = real(1j * self.ky * stream) * real(1j * self.kx * spectrum)
        across = -real(1j * self.kx * stream) * real(1j * self.ky * spectrum)
        return -np.fft.rfft2(along + across) * self.kept - VISCOSITY * self.square * spectrum

    def step(self, spectrum: np.ndarray) -> np.ndarray:
        half = spectrum + 0.5 * TIME_STEP * self.slope(spectrum)
        return spectrum + TIME_STEP * self.slope(half)

    def snapshots(self, random: np.random.Generator) -> np.ndarray:
        spectrum = self.begin(random)
        found = []
        for _ in range(NUM_SNAPSHOTS):
            found.append(np.fft.irfft2(spectrum, s=(self.side, self.side)))
            for _ in range(STEPS_A_SNAPSHOT):
                spectrum = self.step(spectrum)
        return np.stack(found).astype(np.float32)


def write(file: Path, *, num_flows: int, side: int) -> None:
    """Complete once it has its name."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    solver = Solver(side)
    with h5py.File(fresh, "w") as h5:
        shape = (num_flows, NUM_SNAPSHOTS, side, side)
        data = h5.create_dataset("vorticity", shape, "f4", chunks=(1, 1, side, side))
        data.attrs.update(viscosity=VISCOSITY, seconds_a_snapshot=TIME_STEP * STEPS_A_SNAPSHOT)
        for flow in range(num_flows):
            data[flow] = solver.snapshots(np.random.default_rng(flow))
    fresh.rename(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--flows", type=int, default=96)
    parser.add_argument("--side", type=int, default=64)
    options = parser.parse_args()
    if options.file.exists():
        print(f"{options.file} is there already")
    else:
        write(options.file, num_flows=options.flows, side=options.side)
