"""Kernel Ladder: for every layer of GPT-2, kernels that get faster one idea at a time."""

from ladder.core.common.moved import forward

forward(
    {
        "ladder.device.hip": "ladder.core.amd.hip",
        "ladder.device.isa": "ladder.core.amd.isa",
        **{
            f"ladder.{folder}": f"ladder.core.{folder}"
            for folder in (
                *("adopt", "commands", "common", "contract", "device"),
                *("emulator", "measure", "puzzle", "show", "verify"),
            )
        },
    }
)
