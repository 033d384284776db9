"""Pictures of what cannot be seen: which thread, bank, fragment, stage or wave has what, and when.

    from ladder.core.show import pictures

    picture = pictures.make("tiles", "matmul.forward", "3")   a Drawing
    picture.svg()                                             the text of an SVG file

Pages ask for one with `<!-- ladder:begin picture KIND ... -->`, notebooks with `nb.picture(KIND,
...)`. The kinds, and what they take (every one may also take `dtype`):

    tiles OP RUNG           who writes which element: grid, block, warp, thread; buffer=out shape=
    walk OP RUNG steps=     the tiles of factors that a block loads, step by step; block=0 shape=
    outer OP RUNG rows=TEXT columns=TEXT  a thread's register tile as an outer product; TEXT of the
                            lines that load its factors; thread=0 shape=
    access OP RUNG lines=   which lane touches which sector of global memory; lines="x[i]|y[i]":
                            only lines that contain one of these; shape=
    banks OP RUNG line=TEXT one request to shared memory by bank and wavefront; array=
                            does=read request=0 shape= title=
    mma                     fragments of mma.sync: lane and register of each element; lane=
    mma-tf32                the same of mma.sync on TF32; lane=
    ldmatrix                who passes the address of a row, and who receives its elements; lane=
    matrix-core INSTRUCTION   fragments of AMD's: the lane of each element; mfma-16 mfma-32
                            wmma-rdna3 wmma-rdna4
    wgmma-accumulator       of wgmma: warp, lane and register of each element
    swizzle                 which address bits it combines, and 8 rows before and after it
    wgmma-operand           what a step reads of a swizzled tile; major=K, or MN (transposed)
    wgmma-directions k=TEXT mn=TEXT   a tile that two products read, K-major and MN-major; tile=
                            rows= columns= (what they are called)
    chain                   a result beside the left factor of the next product, lane by lane;
                            instruction=mma, or wgmma
    chain-transposed        which of q @ k.T and k @ q.T leaves the left factor of probs.T @ dout
    timeline OP RUNG shape=   a TMA pipeline over time: producer, stages, consumers; copy=5
                            product=2 store=1 softmax=0 (durations) cluster=1 until=60
    ring OP RUNG shape=     the stages of a cp.async pipeline, step by step: filled, awaited, read;
                            kernel=
    copies OP RUNG ... shape=   who asks for copies: all threads with cp.async, or one with TMA;
                            kernel=
    instructions OP RUNG ...    what the instructions of a loop are for; kernel= dtype=bfloat16
    multicast OP RUNG shape=  which block of a cluster asks for which rows, and who receives them;
                            cluster=2 step=0
    waves OP RUNG shape=    tiles over SMs, wave by wave; sms=132
    rasterization OP RUNG ... shape=   the tiles of one wave, and what they read; sms=132 wave=0
    stream-k OP RUNG shape= which steps of which tile each block has; sms=132
    ladder OP               measured times on a logarithmic scale; dtype= shape= device=
    roofline OP             from 0.1 to 1,000 FLOPs per byte; dtype= shape= device=
    causal                  tiles of scores that are computed, masked, skipped; T= queries= keys=
    ring-all-reduce         what each rank sends and sums in each step; ranks=4
    links OP RUNG ... shape=  what crosses the links between ranks: from whom, to whom
    spec OP                 what an op computes, by an example, and what two elements need; shape=
    softmax                 online softmax, tile by tile; T=16 tile=4 seed=3
    softmax-threads         how threads that share a row merge their sums; T=16 threads=4 seed=3
    heads OP RUNG ... shape=  in which order blocks of attention take the heads; kernel=
    flow OP RUNG shape=     attention backward: which block loads which tile of q, k, v and dout,
                            and where dq, dk and dv are summed; tile=

Each kind is a function in a file of its own. What it draws is computed: from the rung's
launch plan, or from what the emulator records while it runs the rung. The function that computes
it stands beside the one that draws it, and is tested.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.identity import code_identity
from ladder.core.contract.ladder import find
from ladder.core.show.pictures import (
    accesses,
    banks,
    causal,
    chain,
    copies,
    flow,
    fragments,
    heads,
    instructions,
    links,
    matrix_cores,
    measured,
    multicast,
    operand,
    outer,
    probes,
    ring,
    ring_all_reduce,
    shares,
    softmax,
    spec,
    swizzle,
    tiles,
    timeline,
    walk,
    waves,
)
from ladder.core.show.pictures.drawing import Drawing

PROBES = {  # kinds that are drawn from a probe, not from a rung
    "mma": probes.MMA,
    "mma-tf32": probes.MMA_TF32,
    "ldmatrix": probes.MMA,
    "wgmma-accumulator": probes.WGMMA,
    "wgmma-operand": probes.WGMMA,
    "wgmma-directions": probes.WGMMA,
    "chain": probes.MMA + probes.WGMMA + probes.WGMMA_REGISTERS,
    "chain-transposed": probes.MMA + probes.WGMMA + probes.WGMMA_REGISTERS,
}
KINDS: dict[str, Callable[..., Drawing]] = {
    "tiles": tiles.draw,
    "walk": walk.draw,
    "outer": outer.draw,
    "access": accesses.draw,
    "banks": banks.draw,
    "mma": fragments.draw,
    "mma-tf32": fragments.draw_tf32,
    "ldmatrix": fragments.draw_ldmatrix,
    "matrix-core": matrix_cores.draw,
    "wgmma-accumulator": fragments.draw_accumulator,
    "swizzle": swizzle.draw,
    "wgmma-operand": operand.draw,
    "wgmma-directions": operand.draw_directions,
    "chain": chain.draw,
    "chain-transposed": chain.draw_transposed,
    "timeline": timeline.draw,
    "ring": ring.draw,
    "ring-all-reduce": ring_all_reduce.draw,
    "links": links.draw,
    "copies": copies.draw,
    "instructions": instructions.draw,
    "multicast": multicast.draw,
    "ladder": measured.draw_ladder,
    "roofline": measured.draw_roofline,
    "stream-k": shares.draw,
    "waves": waves.draw_waves,
    "rasterization": waves.draw_rasterization,
    "causal": causal.draw,
    "spec": spec.draw,
    "softmax": softmax.draw,
    "softmax-threads": softmax.draw_threads,
    "flow": flow.draw,
    "heads": heads.draw,
}


def make(kind: str, *args: str, **options: str) -> Drawing:
    """A picture. Raises LadderError for a kind or arguments that there are none of."""
    draw = _find(kind)
    try:
        inspect.signature(draw).bind(*args, **options)
    except TypeError as error:
        takes = " ".join(inspect.signature(draw).parameters)
        raise LadderError(f"picture {kind} takes {takes}: {error}") from None
    return draw(*args, **options)


def made_from(kind: str, *args: str, **options: str) -> str:
    """Names what a picture shows, 12 hexadecimal digits: its arguments and the code of the rung
    among them. It is known without running anything."""
    given = inspect.signature(_find(kind)).bind(*args, **options).arguments
    if kind in ("ladder", "roofline"):
        code = measured.digest(**given)
        return cache.digest("picture", kind, code)[:12]
    rungs = [probes.rung(PROBES[kind])] if kind in PROBES else []
    if kind == "spec":
        code = inspect.getsource(find(given["op"]).op.reference)
        return cache.digest("picture", kind, code, *(f"{k}={v}" for k, v in given.items()))[:12]
    if "op" in given:
        ids = [given["rung"]] if "rung" in given else given["rungs"]
        rungs = [find(given["op"]).rung(id) for id in ids]
    code = " ".join(map(code_identity, rungs))
    return cache.digest("picture", kind, code, *(f"{k}={v}" for k, v in given.items()))[:12]


def drawn_from(picture: Path) -> str | None:
    """The digest that a picture's file was drawn from, or None."""
    try:
        found = re.search(r"ladder:([0-9a-f]{12})", read_text(picture))
    except LadderError:  # it is not there
        return None
    return found.group(1) if found else None


def _find(kind: str) -> Callable[..., Drawing]:
    if kind not in KINDS:
        raise LadderError(f"there is no picture {kind}; there are {', '.join(KINDS)}")
    return KINDS[kind]
