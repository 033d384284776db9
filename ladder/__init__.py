"""Kernel Ladder: for every layer of GPT-2, kernels that get faster one idea at a time."""

from ladder.core.common.moved import forward

forward(
    __name__,
    {
        "device.hip": "core.amd.hip",
        "device.isa": "core.amd.isa",
        "core.show.training_tables": "core.show.tables",
        "core.show.pictures.probes": "core.show.pictures.fragments",
        **dict.fromkeys(("contract.dims", "contract.dtypes"), "core.contract.op"),
        **{
            folder: f"core.{folder}"
            for folder in (
                *("adopt", "commands", "common", "contract", "device"),
                *("emulator", "measure", "puzzle", "show", "verify"),
            )
        },
    },
)
