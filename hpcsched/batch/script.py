"""An experiment and a site become an sbatch script. Pure but for reading the template."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcsched.batch.sites import Site
from hpcsched.config.duration import ALLOWED, parse_duration
from hpcsched.errors import HpcschedError, InputError
from hpcsched.share import share

if TYPE_CHECKING:
    import jinja2

DEFAULT_TEMPLATE = "plain"
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")
_GPU_OPTIONS = frozenset({"--gpus-per-node", "--gres", "--gpus", "-G", "--gpus-per-task"})
_CORE_OPTIONS = frozenset({"--cpus-per-task", "--cpus-per-gpu", "--exclusive", "--mincpus"})
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]&|!()*^~-]+")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be submitted. Paths are absolute."""

    file: Path
    run_dir: Path
    job_name: str
    nodes: int
    time_s: float
    gpus_per_node: int | None = None
    """None: the site's."""
    python: str
    """The interpreter that runs hpcsched in the job."""
    run_args: tuple[str, ...] = ()
    """Further arguments of `hpcsched run`."""
    signal_before_s: int = 60
    """How long before its end the job is warned (USR2 to the driver); template requeue only."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch; they win."""


def slurm_time(seconds: float) -> str:
    """As sbatch's --time takes it, D-HH:MM:SS; rounded up to a second."""
    whole = int(-(-seconds // 1))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def parse_job_time(text: str) -> float:
    """Seconds of "2h30m" (as in experiment files) or of Slurm's own forms "90" (minutes), "30:00", "2:00:00", "1-12", "1-12:00".

    Raises InputError.
    """
    match = _SLURM_TIME.fullmatch(text.strip())
    if match is None:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise InputError(
                f"--time {text!r}: {error}; allowed is {ALLOWED}, or Slurm's D-HH:MM:SS"
            ) from error
    else:
        days, first, second, third = (int(part) if part else None for part in match.groups())
        assert first is not None, "the pattern demands it"
        if days is not None:
            seconds = ((days * 24 + first) * 60 + (second or 0)) * 60 + (third or 0)
        elif second is None:
            seconds = first * 60.0
        elif third is None:
            seconds = first * 60.0 + second
        else:
            seconds = (first * 60 + second) * 60.0 + third
    if seconds < 60:
        raise InputError(f"--time {text!r}: less than a minute; nothing can be trained in that")
    return float(seconds)


def template_names() -> list[str]:
    """The shipped templates, without those that others build on (they begin with "_")."""
    return sorted(
        file.name.removesuffix(".sh.j2")
        for file in share("slurm_templates").glob("*.sh.j2")
        if not file.name.startswith("_")
    )


def render(request: JobRequest, site: Site, template: str = DEFAULT_TEMPLATE) -> str:
    """The script's text. `template`: a shipped name, or the path of a .j2 file of one's own (it may extend "_job.sh.j2").

    Raises InputError (no such template, a mistake in it, a container template without an image) and HpcschedError
    when Jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise HpcschedError("submitting needs jinja2: `pip install 'hpcsched[submit]'`") from error
    gpus = request.gpus_per_node if request.gpus_per_node is not None else site.gpus_per_node
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(share("slurm_templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = lambda word: shlex.quote(str(word))
    environment.filters["words"] = lambda words: " ".join(shlex.quote(str(word)) for word in words)
    environment.filters["toml"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["fail"] = _fail
    try:
        chosen = _template(environment, template)
        text = chosen.render(
            request=request,
            site=site,
            directives=directives(request, site),
            gpus_per_node=gpus,
            folder=str(request.file.parent),
            mounts=lambda: _mounts(request, site),
            **_words(request),
        )
    except jinja2.TemplateError as error:
        raise InputError(f"--template {template}: {type(error).__name__}: {error}") from error
    return text


def directives(request: JobRequest, site: Site) -> list[str]:
    """Options of sbatch that every template has, one a line; the request's own come last, so that they win."""
    gpus = request.gpus_per_node if request.gpus_per_node is not None else site.gpus_per_node
    given: list[tuple[str, object]] = [
        ("job-name", request.job_name),
        ("account", site.account),
        ("partition", site.partition),
        ("qos", site.qos),
        ("constraint", site.constraint),
        ("nodes", request.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", site.cpus_per_node),
        ("mem", site.mem),
        ("time", slurm_time(request.time_s)),
        ("output", f"{request.run_dir}.slurm-%j.out".replace("%", "%%").replace("%%j.out", "%j.out")),
    ]
    if gpus is not None:
        kind = f"{site.gpu_type}:{gpus}" if site.gpu_type else str(gpus)
        given.append(
            ("gres", f"gpu:{kind}") if site.gpu_option == "gres" else ("gpus-per-node", kind),
        )
    lines = [f"--{name}={_value(name, value)}" for name, value in given if value is not None]
    return [*lines, *(_option(option) for option in (*site.sbatch, *request.sbatch))]


def no_cores(script: str) -> str | None:
    """What is to be said of a script that asks Slurm for GPUs and leaves it open how many cores; None: nothing."""
    words = [line.split()[1] for line in script.splitlines() if line.startswith("#SBATCH -")]
    names = {word.partition("=")[0] for word in words}
    if not names & _GPU_OPTIONS or names & _CORE_OPTIONS or any(word.startswith("-c") for word in words):
        return None
    return (
        "the job asks for GPUs and not for cores: Slurm gives the partition's default, at many sites one core a node. Write "
        "cpus_per_node and mem into the site's file, or take --template exclusive"
    )


def _value(name: str, value: object) -> str:
    text = str(value)
    if any(ord(char) < 32 for char in text):
        raise InputError(
            f"--{name}: {text!r}: a line end or control character cannot stand in an sbatch script"
        )
    if _PLAIN.fullmatch(text):
        return text
    # sbatch splits such a line at blanks, and takes quotes and backslashes as a shell does.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _option(option: str) -> str:
    if not option.startswith("-") or any(ord(char) < 32 for char in option):
        raise InputError(f'sbatch option {option!r}: must be one option, such as "--reservation=course"')
    name, equals, value = option.partition("=")
    return f"{name}={_value(name, value)}" if equals else name


def _words(request: JobRequest) -> Mapping[str, Any]:
    python = (request.python, "-P", "-m", "hpcsched")
    return {
        "hpcsched": python,
        "run": (*python, "run", str(request.file), "--run-dir", str(request.run_dir), *request.run_args),
        "resume": (*python, "run", "--resume", str(request.run_dir)),
        "journal": request.run_dir / "journal",
    }


def _mounts(request: JobRequest, site: Site) -> list[str]:
    """HOST:CONTAINER, for a container: what the ranks read and write, at the same place as outside."""
    own = dict.fromkeys(str(path) for path in (request.file.parent, request.run_dir.parent))
    for path in own:
        if set(path) & {",", ":"}:
            raise InputError(
                f"{path}: a comma or colon in a path cannot be mounted into a container; move the folder"
            )
    return [*(f"{path}:{path}" for path in own), *site.container_mounts]


def _template(environment: jinja2.Environment, name: str) -> jinja2.Template:
    if name.endswith(".j2"):
        try:
            return environment.from_string(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"--template {name}: cannot be read: {error.strerror}") from error
    if name not in template_names():
        raise InputError(
            f"--template {name}: no such template; there are {', '.join(template_names())}. "
            "Or give the path of a .j2 file of your own"
        )
    return environment.get_template(f"{name}.sh.j2")


def _fail(message: str) -> None:
    raise InputError(message)
