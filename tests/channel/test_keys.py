from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq.auth

from hpcsched.channel.keys import create_keys, load_pair, load_public
from hpcsched.errors import ChannelError


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_keys_are_the_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        # with 0777 even our own parents would be unreadable: only the last folder is ours to make
        keys = create_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for file in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert load_pair(keys.server_secret_file)[0] == load_public(keys.server_public_file)


def test_a_folder_open_to_others_is_closed_again(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    folder.chmod(0o777)
    create_keys(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_secret_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    keys = create_keys(tmp_path)
    keys.client_secret_file.chmod(0o640)
    with pytest.raises(ChannelError, match="readable by nobody else"):
        load_pair(keys.client_secret_file)


def test_each_driver_life_has_other_keys(tmp_path: Path) -> None:
    first = load_pair(create_keys(tmp_path).server_secret_file)
    second = load_pair(create_keys(tmp_path).server_secret_file)
    assert first != second
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "client.key",
        "client.key_secret",
        "server.key",
        "server.key_secret",
    ]


def test_files_have_the_certificate_format_of_zeromq(tmp_path: Path) -> None:
    keys = create_keys(tmp_path)
    assert zmq.auth.load_certificate(keys.client_secret_file) == load_pair(keys.client_secret_file)


def test_a_missing_or_broken_file_is_a_channel_error(tmp_path: Path) -> None:
    with pytest.raises(ChannelError, match="cannot read"):
        load_public(tmp_path / "none.key")
    broken = tmp_path / "broken.key"
    broken.write_text("curve\n")
    with pytest.raises(ChannelError):
        load_public(broken)
