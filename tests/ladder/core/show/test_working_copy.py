"""Answers stay in the reader's copies, whatever happens to the notebooks that were copied."""

import pytest

from ladder.core.show import working_copy


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_start", "01_embedding"):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text("first")
    monkeypatch.setattr(working_copy, "ROOT", tmp_path)
    monkeypatch.setattr(working_copy, "FOLDER", tmp_path / "my")
    return tmp_path


def test_a_copy_with_answers_stays_and_another_follows_its_notebook(folder):
    assert working_copy.renew() == []
    answered, untouched = sorted((folder / "my").glob("*.ipynb"))
    answered.write_text("my answers")
    assert working_copy.renew() == []
    for path in (folder / "notebooks").iterdir():
        path.write_text("second")
    (line,) = working_copy.renew()
    assert line.startswith("00_start.ipynb ")
    assert (answered.read_text(), untouched.read_text()) == ("my answers", "second")
    answered.rename(folder / "my" / "answers.ipynb")
    assert working_copy.renew() == [] and answered.read_text() == "second"


@pytest.mark.parametrize("content", ["", "3", '["00_start.ipynb"]'])
def test_without_a_record_every_copy_stays(folder, content):
    working_copy.renew()
    (folder / "my" / working_copy.COPIED).write_text(content)
    (folder / "notebooks" / "00_start.ipynb").write_text("second")
    assert any("00_start" in line for line in working_copy.renew())
    assert (folder / "my" / "00_start.ipynb").read_text() == "first"
