"""Old names of modules lead to the new ones, and say so."""

import importlib
import sys

import pytest

OLD = {
    "ladder.contract.op": "ladder.core.contract.op",
    "ladder.core.show.training_tables": "ladder.core.show.tables",
    "trainer.measure.doctor": "trainer.commands.doctor",
    "trainer.run.training": "trainer.train",
    "trainer.run.logs": "trainer.files.logs",
    "trainer.settings.config": "trainer.flags",
    "trainer.settings.parser": "trainer.commands.parser",
}


@pytest.mark.parametrize("old", OLD)
def test_a_module_is_imported_under_its_old_name(monkeypatch, old):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(FutureWarning, match=rf"{old}\b.*\b{OLD[old]}"):
        module = importlib.import_module(old)
    assert module is sys.modules[OLD[old]]
    assert module.__spec__.name == OLD[old]
