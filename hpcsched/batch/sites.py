"""A site: what differs from cluster to cluster, in one small TOML file.

Looked for by name in `$HPCSCHED_SITES` (folders, as PATH has them), `~/.config/hpcsched/sites` and the shipped
`slurm_templates/sites`, or given as a path. Options are those of sbatch(1).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from hpcsched.errors import InputError
from hpcsched.share import share

DEFAULT_SITE = "generic"
SITES_VARIABLE = "HPCSCHED_SITES"
SITE_VARIABLE = "HPCSCHED_SITE"

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One cluster, or one way to use it. What is None is left to the cluster's defaults."""

    description: str = ""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpu_option: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """How this site spells GPUs: `--gpus-per-node=4` or `--gres=gpu:4`."""
    gpu_type: str | None = None
    """Such as "a100": `--gres=gpu:a100:4`."""
    gpus_per_node: int | None = None
    """Default of `--gpus-per-node`."""
    cpus_per_node: int | None = None
    """Cores of each node for the whole job; without it Slurm gives one task's worth (often one core)."""
    mem: str | None = None
    """Memory a node, as sbatch takes it ("0": all)."""
    interface: str | None = None
    """Network interface for NCCL and Gloo, such as "hsn0" or "ib0"."""
    modules: tuple[str, ...] = ()
    """For `module load`."""
    setup: tuple[str, ...] = ()
    """Lines of bash, as they are, before the driver starts (conda activate ...)."""
    python: str | None = None
    """The interpreter that runs hpcsched in the job; default: the one that submits."""
    env: dict[str, str] = {}
    container: str | None = None
    """Image for the templates apptainer (a .sif file or docker://...) and pyxis."""
    container_mounts: tuple[str, ...] = ()
    """HOST:CONTAINER; the folder of the experiment file is always there."""
    sbatch: tuple[str, ...] = ()
    """Further options, such as "--reservation=course"."""


def site_folders(environ: Mapping[str, str]) -> list[Path]:
    """Where sites are looked for, first one wins."""
    own = [Path(part) for part in environ.get(SITES_VARIABLE, "").split(":") if part]
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "/nonexistent")) / ".config")
    return [*own, Path(config) / "hpcsched" / "sites", share("slurm_templates") / "sites"]


def site_names(environ: Mapping[str, str]) -> list[str]:
    return sorted({file.stem for folder in site_folders(environ) for file in folder.glob("*.toml")})


def load_site(name: str | None, environ: Mapping[str, str]) -> Site:
    """Read a site by name, or from a path that ends in .toml. None: `$HPCSCHED_SITE`, else "generic".

    Raises InputError: no such site, an unknown key, a wrong value.
    """
    wanted = name or environ.get(SITE_VARIABLE) or DEFAULT_SITE
    file = _find(wanted, environ)
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
        site = msgspec.convert(document, Site)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: is not TOML: {error}") from error
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(Site))
        raise InputError(f"{file}: {error}; the keys of a site are {known}") from error
    for key, value in site.env.items():
        if not _ENV_NAME.fullmatch(key):
            raise InputError(f"{file}: env.{key}: not the name of an environment variable")
        if "\0" in value:
            raise InputError(f"{file}: env.{key}: holds a NUL character")
    for key in ("gpus_per_node", "cpus_per_node"):
        number = getattr(site, key)
        if number is not None and number < 1:
            raise InputError(f"{file}: {key}: {number}; must be 1 or more")
    return site


def _find(wanted: str, environ: Mapping[str, str]) -> Path:
    if wanted.endswith(".toml"):
        if not Path(wanted).is_file():
            raise InputError(f"--site {wanted}: no such file")
        return Path(wanted)
    for folder in site_folders(environ):
        file = folder / f"{wanted}.toml"
        if Path(wanted).name == wanted and file.is_file():
            return file
    places = ", ".join(str(folder) for folder in site_folders(environ))
    raise InputError(
        f"--site {wanted}: no such site; there are {', '.join(site_names(environ)) or 'none'} (in {places}). "
        "Copy one there under a new name, or give the path of a .toml file"
    )
