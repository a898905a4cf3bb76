"""What a local cloud writes down of its machines."""

from __future__ import annotations

from pathlib import Path

from ebbtide.live.clouds.local.server import _write_changed


def test_a_file_is_written_where_it_differs_whatever_it_held(tmp_path: Path) -> None:
    path = tmp_path / "ended.json"
    path.write_bytes(b"\xff\xfe damaged")
    _write_changed(path, "[1]")
    assert path.read_text() == "[1]"
    written = path.stat().st_ino
    _write_changed(path, "[1]")
    assert path.stat().st_ino == written
