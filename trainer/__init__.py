"""Trains GPT-2 on the ladders. Read train.py, open.py, report.py, flags.py, in this order."""

from ladder.core.common.moved import forward

forward(
    {
        "trainer.measure": "trainer.commands",
        "trainer.run.training": "trainer.train",
        "trainer.run.logs": "trainer.files.logs",
        "trainer.run": "trainer.commands",
        "trainer.settings.flags": "trainer.flags",
        "trainer.settings.config": "trainer.flags",
        "trainer.settings": "trainer.commands",
    }
)
