"""The jobs: their files are right, their data readers refuse what they must, and each runs, small, from end to end."""

from __future__ import annotations

import difflib
import importlib.util
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hpcsched.config.load import load_experiment
from hpcsched.report.load import load as load_log
from tests.support.e2e import hpcsched, job

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
EXPERIMENTS = sorted(JOBS.glob("*/experiment.toml"))


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"job_{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the files


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.parent.name)
def test_check_passes(file: Path) -> None:
    done = hpcsched("check", str(file), "--launcher", "local")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.parent.name)
def test_every_job_has_a_script_for_slurm_that_runs_its_file(file: Path) -> None:
    script = JOBS / f"{file.parent.name}.sh"
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert "#SBATCH --no-kill" in text
    assert "#SBATCH --signal=B:USR2@" in text
    assert "#SBATCH --exclusive\n#SBATCH --mem=0\n" in text, "GPUs alone come with one core a node"
    assert f"run jobs/{file.parent.name}/experiment.toml" in text
    assert re.search(r"^exec ", text, re.MULTILINE), "so that the warning reaches the driver"
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("name", ["cifar10", "imagenet_resnet50"])
def test_the_space_is_the_papers_table_2(name: str) -> None:
    spec = load_experiment(JOBS / name / "experiment.toml", overrides={})
    sizes = {key: len(dimension.values) for key, dimension in spec.search.space.items()}  # type: ignore[union-attr]
    assert sizes == {"learning_rate": 9, "weight_decay": 4, "momentum": 4}, "144 configurations"


def test_the_imagenet_settings_are_the_papers() -> None:
    raw = tomllib.loads((JOBS / "imagenet_resnet50/experiment.toml").read_text())
    spec = load_experiment(JOBS / "imagenet_resnet50/experiment.toml", overrides={})
    assert (spec.experiment.deadline, spec.experiment.metric_window) == (7200.0, 5)
    assert (spec.atoms.gpus_per_atom, spec.atoms.multiple_of) == (2, 2)
    assert (spec.trial.grace_period, spec.trial.max_iterations) == (10, 500)
    assert raw["scheduler"]["reduction_factor"] == 4


def test_at_most_ten_lines_make_a_torchrun_script_a_trial() -> None:
    """Docstrings aside; a comment at a line's end is no difference."""

    def lines(file: Path) -> list[str]:
        code = file.read_text().split('"""', 2)[2]
        return [re.sub(r"\s+# .*", "", line).rstrip() for line in code.splitlines() if line.strip()]

    plain, trial = lines(HERE / "plain_digits.py"), lines(JOBS / "digits/train.py")
    new = [line for line in difflib.ndiff(plain, trial) if line.startswith("+ ")]
    assert 5 < len(new) <= 10, "\n".join(new)


def test_the_readme_shows_these_very_lines() -> None:
    block = re.search(r"```diff\n(.*?)```", (JOBS.parent / "README.md").read_text(), re.DOTALL)
    assert block is not None

    def squeezed(file: Path) -> str:
        return re.sub(r"\s+", "", re.sub(r"\s+# .*", "", file.read_text()))

    trial, plain = squeezed(JOBS / "digits/train.py"), squeezed(HERE / "plain_digits.py").replace(",)", ")")
    shown = block[1].splitlines()
    assert sum(line.startswith("+") for line in shown) == 10
    for line in shown:
        code = re.sub(r"\s+", "", line[1:])
        if line.startswith("+"):
            assert code in trial, line
        elif line.startswith("-"):
            # The formatter breaks the line of the device and puts brackets round it.
            assert code in plain or code in plain.replace("device=(", "device=").replace(
                'torch.device("cpu"))', 'torch.device("cpu")'
            ), line


def test_the_plain_script_trains() -> None:
    pytest.importorskip("sklearn")
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(HERE / "plain_digits.py"),
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("epoch 20  accuracy 0.9")


# ---- CIFAR-10


def batch(file: Path, **changes: object) -> Path:
    labels = [place % 10 for place in range(20)]
    data = np.arange(20 * 3072, dtype=np.uint32).reshape(20, 3072).astype(np.uint8)
    content = {b"batch_label": b"a batch", b"data": data, b"labels": labels, b"filenames": [b"x.png"] * 20}
    content |= {name.encode(): value for name, value in changes.items()}
    file.write_bytes(pickle.dumps(content, protocol=2))
    return file


def test_the_standard_batches_are_read(tmp_path: Path) -> None:
    images = load(JOBS / "cifar10/images.py")
    for name in (*images.TRAIN_FILES, images.TEST_FILE):
        batch(tmp_path / name)
    (pixels, labels), (test_pixels, _) = images.read_folder(tmp_path)
    assert pixels.shape == (100, 3, 32, 32)
    assert pixels.dtype == torch.uint8
    assert labels[:3].tolist() == [0, 1, 2]
    assert pixels[0, 1, 0, :3].tolist() == [0, 1, 2], "1,024 bytes of red come before the green"
    assert len(test_pixels) == 20


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_batch_that_would_run_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = load(JOBS / "cifar10/images.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"posix\.system, which no CIFAR-10 batch needs"):
        images.read_batch(batch(tmp_path / "evil", data=Evil()))
    with pytest.raises(ValueError, match="no CIFAR-10 batch"):
        images.read_batch(batch(tmp_path / "short", data=np.zeros((20, 5), np.uint8)))
    with pytest.raises(ValueError, match="no CIFAR-10 batch"):
        images.read_batch(batch(tmp_path / "labels", labels=[11] * 20))
    assert not (tmp_path / "pwned").exists()


def test_without_data_it_is_said_how_to_lay_it_out(tmp_path: Path) -> None:
    for name, line in (
        ("cifar10", "data_batch_1 ... data_batch_5"),
        ("imagenet_resnet50", "train-000000.tar"),
    ):
        images = load(JOBS / name / "images.py")
        with pytest.raises(SystemExit) as ended:
            images.read_folder(tmp_path) if name == "cifar10" else list(images.find(tmp_path, "train"))
        assert line in str(ended.value)
        assert str(tmp_path) in str(ended.value)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet18", 11.174), ("resnet50", 23.521), ("vgg16", 14.724), ("shufflenet", 1.264)],
)
def test_the_models_have_as_many_parameters_as_published(name: str, millions: float) -> None:
    models = load(JOBS / "cifar10/models.py")
    with torch.device("meta"):
        net = models.MODELS[name](64)
    assert sum(parameter.numel() for parameter in net.parameters()) / 1e6 == pytest.approx(millions, abs=1e-3)
    small = models.MODELS[name](8).eval()
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


# ---- ImageNet


def test_an_image_is_the_same_from_a_folder_and_from_a_shard(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    images = load(JOBS / "imagenet_resnet50/images.py")
    folder = tmp_path / "folder"
    images.make_folder(folder, 16)
    found = list(images.find(folder, "train"))
    assert len(found) == 16
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, part in enumerate((found[:10], found[10:])):
        with tarfile.open(shards / f"train-{number:06}.tar", "w") as tar:
            for place, (path, _, _, label) in enumerate(part):
                for ending, data in (("jpg", Path(path).read_bytes()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{place:04}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    for place in (folder, shards):
        images.write_index(place, "train", tmp_path)
    one, other = (images.Images(place, "train", tmp_path, augmented=False) for place in (folder, shards))
    assert len(one) == len(other) == 16
    for place in (0, 9, 10, 15):
        (pixels, label), (same, also) = one[place], other[place]
        assert pixels.shape == (224, 224, 3)
        assert torch.equal(pixels, same)
        assert label == also


def test_the_images_that_are_judged_and_their_score_are_the_same_for_any_number_of_ranks() -> None:
    pytest.importorskip("PIL")
    images = load(JOBS / "imagenet_resnet50/images.py")
    labels = np.repeat(np.arange(100), 20)  # sorted by class
    right = np.random.default_rng(0).random(len(labels)) < 0.3
    found = []
    for world_size in (1, 2, 3, 4, 7):
        dealt = [
            images.judged(len(labels), 501, rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        together = sorted(place for mine in dealt for place in mine)
        sums = np.sum([[right[mine].sum(), len(mine)] for mine in dealt], axis=0)
        found.append((together, float(sums[0] / sums[1])))
    assert all(each == found[0] for each in found)
    together, score = found[0]
    assert len(together) == len(set(together)) == 501
    assert score == right[together].mean()
    assert len(set(labels[together])) > 95, "of all classes, not of the first"
    assert len(images.judged(10, 501, rank=0, world_size=1)) == 10


class Busy:
    """Reading the list of images while it must not be read."""

    def __call__(self, folder: Path, part: str) -> None:
        pytest.fail(f"{part} of {folder} is read again")


def test_the_list_of_images_is_made_before_the_run_and_trials_only_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    lines = (JOBS / "imagenet_resnet50.sh").read_text().splitlines()
    (making,) = (
        place for place, line in enumerate(lines) if line.endswith("jobs/imagenet_resnet50/images.py")
    )
    (running,) = (place for place, line in enumerate(lines) if line.startswith("exec "))
    assert making < running
    images = load(JOBS / "imagenet_resnet50/images.py")
    images.make_folder(tmp_path / "data", 1)
    monkeypatch.chdir(tmp_path)
    made = images.write_index(Path("data"), "train", tmp_path)
    assert made.parent == Path("data")
    assert all(line.startswith(f"{tmp_path}/data/train/") for line in made.read_text().splitlines())
    monkeypatch.setattr(images, "find", Busy())
    assert images.write_index(Path("data"), "train", tmp_path) == made


def test_trials_that_come_at_once_make_one_list_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    images = load(JOBS / "imagenet_resnet50/images.py")
    images.make_folder(tmp_path / "data", 1)
    index = tmp_path / "data/.index-train.tsv"
    # Another trial has the lock, and has made the list when it lets go.
    monkeypatch.setattr(images.fcntl, "flock", lambda file, how: index.write_text(""))
    find = images.find
    monkeypatch.setattr(images, "find", Busy())
    assert images.write_index(tmp_path / "data", "train", tmp_path) == index

    def no_locks(file: object, how: int) -> None:
        raise OSError("this file system has no locks")

    monkeypatch.setattr(images, "find", find)
    monkeypatch.setattr(images.fcntl, "flock", no_locks)
    assert len(images.write_index(tmp_path / "data", "val", tmp_path).read_text().splitlines()) == 8


def test_lists_of_two_data_folders_that_may_not_be_written_do_not_meet(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    images = load(JOBS / "imagenet_resnet50/images.py")
    one, other = (images._places(tmp_path / name, "train", tmp_path) for name in ("one", "other"))
    assert one[1].parent == other[1].parent == JOBS / "imagenet_resnet50"
    assert one[1] != other[1]


def test_a_made_folder_that_another_trial_was_faster_to_make_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    images = load(JOBS / "imagenet_resnet50/images.py")
    (tmp_path / "made/train").mkdir(parents=True)
    exists = Path.exists
    answers = iter([False])  # it came just after we had looked
    monkeypatch.setattr(Path, "exists", lambda path: next(answers, None) is None and exists(path))
    images.make_folder(tmp_path / "made", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_resnet50_has_as_many_parameters_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.syspath_prepend(str(JOBS / "imagenet_resnet50"))
    monkeypatch.delitem(sys.modules, "images", raising=False)
    train = load(JOBS / "imagenet_resnet50/train.py")
    monkeypatch.delitem(sys.modules, "images", raising=False)
    with torch.device("meta"):
        net = train.resnet50(64)
    assert sum(parameter.numel() for parameter in net.parameters()) == 25_557_032


# ---- the flow


def test_the_solver_is_right_where_the_answer_is_known() -> None:
    """Taylor and Green's vortex only decays: w(t) = w(0) exp(-2 nu k^2 t), k = 3."""
    flow = load(JOBS / "cfd_surrogate/flow.py")
    solver = flow.Solver(32)
    x = np.arange(32) * 2 * np.pi / 32
    field = np.cos(3 * x)[:, None] * np.cos(3 * x)[None, :]
    spectrum = np.fft.rfft2(field)
    for _ in range(100):
        spectrum = solver.step(spectrum)
    expected = field * np.exp(-2 * flow.VISCOSITY * 9 * 100 * flow.TIME_STEP)
    assert np.abs(np.fft.irfft2(spectrum) - expected).max() < 1e-6


def test_without_viscosity_energy_and_enstrophy_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the product of velocity and gradient is right: it only moves things about."""
    flow = load(JOBS / "cfd_surrogate/flow.py")
    monkeypatch.setattr(flow, "VISCOSITY", 0.0)
    solver = flow.Solver(48)
    spectrum = solver.begin(np.random.default_rng(5))
    begun = np.fft.irfft2(spectrum)
    for _ in range(50):
        spectrum = solver.step(spectrum)
    ended = np.fft.irfft2(spectrum)
    assert (ended**2).mean() == pytest.approx((begun**2).mean(), rel=0.01)
    assert np.abs(ended - begun).max() > 1.0, "and it does move"


# ---- from end to end, small


def run_small(
    folder: Path, name: str, arguments: list[str], *, deadline: str = "4m", **lines: str
) -> dict[str, object]:
    """The job's own file with a smaller model, two ranks, one trial and few iterations; what best.json says."""
    text = (JOBS / name / "experiment.toml").read_text()
    command = json.dumps(["python", str(JOBS / name / "train.py"), *arguments])
    lines = {
        "command": command,
        "deadline": json.dumps(deadline),
        "grace_period": "1",
        "max_iterations": "2",
        "num_trials": "1",
    } | lines
    for key, value in lines.items():
        text, num = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert num == 1, key
    text = text.replace("[atoms]", "[atoms]\nnum_atoms = 1")
    text += '\n[launcher]\nwarm = false\n[trial.env]\nOMP_NUM_THREADS = "1"\n'
    run = job(folder, text).start()
    assert run.ends(280.0) == 0, run.told()
    run.check(best=False)
    best = json.loads((run.folder.best / "best.json").read_text())
    assert best["training_iteration"] == 2
    assert torch.load(run.folder.best / "model.pt", weights_only=True)
    assert isinstance(best, dict)
    measures = load_log(run.folder.root).measures
    assert list(measures["training_iteration"]) == [1, 2]
    assert (measures["samples_per_s"] > 0).all()
    assert ((measures["data_wait"] >= 0) & (measures["data_wait"] <= 1)).all()
    return best


def test_cifar10_runs_small(tmp_path: Path) -> None:
    best = run_small(
        tmp_path,
        "cifar10",
        ["--synthetic", "64", "--width", "8", "--batch", "16", "--model", "shufflenet"],
        gpus_per_atom="2",
    )
    assert 0 <= best["metric"] <= 1  # type: ignore[operator]  # a number


def test_imagenet_runs_small_decoding_included(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    arguments = [
        "--synthetic",
        "32",
        "--width",
        "8",
        "--batch",
        "4",
        "--steps",
        "3",
        "--validation",
        "7",
        "--workers",
        "1",
    ]
    run_small(tmp_path, "imagenet_resnet50", arguments)
    assert (tmp_path / "run/made-images/train/class0").is_dir()


def test_the_flow_surrogate_runs_small(tmp_path: Path) -> None:
    flow = load(JOBS / "cfd_surrogate/flow.py")
    flow.write(tmp_path / "flow.h5", num_flows=8, side=16)
    arguments = ["--data", str(tmp_path / "flow.h5"), "--channels", "4", "--epochs", "1"]
    run_small(
        tmp_path,
        "cfd_surrogate",
        arguments,
        gpus_per_atom="2",
        learning_rate="{ constant = 1e-3 }",
        optimizer='{ constant = "adam" }',
    )
