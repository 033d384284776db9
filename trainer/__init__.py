"""Trains GPT-2 on the ladders. Read train.py, open.py, report.py, flags.py, in this order."""

from ladder.core.common.moved import forward

forward(
    __name__,
    {
        "measure": "commands",
        "run.training": "train",
        "run.logs": "files.logs",
        "run": "commands",
        "settings.flags": "flags",
        "settings.config": "flags",
        "settings": "commands",
    },
)
