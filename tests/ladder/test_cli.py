"""python -m ladder: what it prints, and that whatever is wrong is one line and status 2."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeGpu

from ladder.__main__ import COMMANDS, main
from ladder.core.commands import checks, timings
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.target import Target
from ladder.core.device.open import Cpu
from ladder.core.measure import results
from ladder.core.show.pages import ROOT
from ladder.core.verify.check import Outcome, Report

PLANTED = Path(__file__).parent / "planted" / "forward.cu"


def test_list_names_every_op_and_rung(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for ladder in ladders().values():
        assert ladder.op.name in out
    assert "<= 65535" not in out
    assert main(["list", "attention"]) == 0
    assert "B * NH <= 65535" in capsys.readouterr().out
    assert main(["list", "layernorm"]) == 0
    out = capsys.readouterr().out
    assert "one warp per row" in out
    assert "residual" not in out


@pytest.mark.parametrize("command", [name for names in COMMANDS.values() for name in names])
def test_a_command_is_found_in_its_module(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"usage: python -m ladder {command}" in capsys.readouterr().out


def test_show_prints_the_file_as_it_is(capsys):
    assert main(["show", "layernorm.forward", "3"]) == 0
    assert capsys.readouterr().out == find("layernorm.forward").rung(3).source


def test_diff_is_a_unified_diff_that_patch_would_take(capsys):
    assert main(["diff", "layernorm.forward", "2", "3", "--header"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("--- 2_")
    assert lines[1].startswith("+++ 3_")
    assert main(["diff", "layernorm.forward", "3", str(PLANTED), "--header"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("+++ forward.cu")


def test_check_passes_for_a_rung_and_says_how_closely(capsys):
    arguments = ["check", "layernorm.forward", "0", "--device", "cpu", "--dtype", "fp32,bf16"]
    assert main([*arguments, "--shape", "N=3,C=5", "-v"]) == 0
    out = capsys.readouterr().out
    assert "layernorm.forward rung 0 (the NumPy reference) on cpu: 8 passed; largest error" in out
    assert "    N=3 C=5, bfloat16, large mean: passed" in out


def test_check_of_a_layer_takes_the_ops_that_have_the_rung_and_names_the_others(capsys):
    arguments = ["check", "start", "4", "--device", "emulated", "--shape", "N=33"]
    assert main(arguments) == 0
    left_out, checked, hint = capsys.readouterr().out.splitlines()
    assert left_out == "left out: start.add has no rung '4'; it has 0 to 3"
    assert checked.startswith("start.sum rung 4 ") and hint.startswith("at this shape only")
    assert main([*arguments[:2], "9", *arguments[3:]]) == 2
    error = capsys.readouterr().err
    assert "start.add has no rung '9'" in error and "start.sum has no rung '9'" in error


def test_a_limit_that_cannot_be_judged_is_named(capsys):
    assert main(["check", "start.add", "3", "--at-most", "requests"]) == 2
    assert "'requests' is no limit; write e.g." in capsys.readouterr().err
    assert main(["check", "start.add", "--at-least", "requests=2"]) == 2
    assert "name it after the op" in capsys.readouterr().err


@pytest.mark.slow
def test_check_of_a_ladder_leaves_out_the_rungs_that_the_gpu_is_too_old_for(monkeypatch, capsys):
    class Turing(Cpu):
        kind, name = "cuda", "Tesla T4"
        is_gpu, runs_reference, runs_kernels = True, False, True
        libraries = SimpleNamespace(ids={"cublas", "cublaslt"})

        def target(self, real):
            return Target("sm_75", 32, 40, 64 << 10, np.dtype(real))

    checked = []

    def note(ladder, rung, *_):
        checked.append(rung.id)
        return Report(ladder.op.name, rung.label, "", (Outcome({}, "", "normal", "passed"),))

    monkeypatch.setattr(checks, "open_device", lambda name: Turing())
    monkeypatch.setattr(checks.check, "check", note)
    assert main(["check", "matmul.forward", "--device", "cuda"]) == 0
    rungs = find("matmul.forward").rungs
    newer = {rung.id for rung in rungs if rung.path and "sm >= 80" in rung.conditions()}
    assert newer and not newer & set(checked) and {"1", "2"} <= set(checked)
    assert "not for Tesla T4, left out" in capsys.readouterr().out


@pytest.mark.emulator
def test_trace_prints_sectors_and_draws(tmp_path, capsys):
    picture = tmp_path / "access.svg"
    arguments = ["trace", "layernorm.forward", "1", "--shape", "N=32,C=32"]
    assert main([*arguments, "--picture", str(picture)]) == 0
    assert "32.0 sectors" in capsys.readouterr().out
    assert "read inp: 32 sectors" in picture.read_text()
    (path := tmp_path / "folder.svg").mkdir()
    assert main([*arguments, "--picture", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"ladder: cannot write {path}: ")


@pytest.mark.emulator
def test_sass_and_trace_take_the_type_that_the_rung_is_written_for(capsys):
    pytest.importorskip("nvidia", reason="needs NVIDIA's compiler: pip install -e '.[compile]'")
    assert main(["sass", "matmul.forward", "16bit-8", "--summary"]) == 0
    assert " HMMA" in capsys.readouterr().out
    assert main(["trace", "matmul.forward", "16bit-8", "--shape", "N=64,C=64,OC=64"]) == 0
    assert "float16" in capsys.readouterr().out


@pytest.mark.nvrtc
def test_sass_needs_no_memory_for_arrays_and_names_what_a_launch_adds(capsys):
    pytest.importorskip("nvidia", reason="needs NVIDIA's compiler: pip install -e '.[compile]'")
    words = ["attention.forward", "16bit-9", "--shape", "B=65536,T=65536,C=768,NH=12", "--summary"]
    assert main(["sass", *words]) == 0
    assert "0 bytes of shared memory" in (out := capsys.readouterr().out)
    assert "its launch adds 36,864 bytes of shared memory" in out


@pytest.mark.emulator
def test_json_is_a_list_and_the_status_is_that_of_text(tmp_path, capsys):
    def found(*words, status=0):
        assert main([*words, "--format", "json"]) == status
        return json.loads(capsys.readouterr().out)

    (op,) = found("list", "layernorm.forward")
    third = next(rung for rung in op["rungs"] if rung["rung"] == "3")
    assert (op["dims"], third["name"], third["after"]) == (["N", "C"], "warp_per_row", "2")
    path = tmp_path / "mine.cu"
    path.write_text(PLANTED.read_text().replace("to_real(value)", "to_real(2 * value)"))
    on = ["--device", "emulated", "--dtype", "fp32", "--shape", "N=3,C=5"]
    (report,) = found("check", "layernorm.forward", str(path), *on, status=1)
    assert not report["passed"] and report["outcomes"][0]["dims"] == {"N": 3, "C": 5}
    counts = found("trace", "layernorm.forward", "1", "--shape", "N=32,C=32")
    assert {"inp", "out"} <= {count["buffer"] for count in counts}


@pytest.mark.costly
@pytest.mark.slow
def test_bench_on_the_cpu_says_how_long_it_takes_or_refuses(capsys):
    words = ["bench", "softmax.forward", "0", "--device", "cpu", "--dtype", "fp32"]
    assert main([*words, "--format", "json", "--shape", "N=9,V=9"]) == 0
    out, err = capsys.readouterr()
    (measurement,) = json.loads(out)
    assert measurement["dims"] == {"N": 9, "V": 9} and measurement["rows"][0]["rung"] == "0"
    assert re.match(r"on the CPU this takes about \d+ seconds\n", err)
    assert main(["bench", "matmul.forward", "--device", "cpu"]) == 2
    assert "minutes until matmul.forward is timed" in capsys.readouterr().err


def test_bench_keeps_times_in_a_file_of_ones_own_and_compares(tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.json"

    def bench(us, rung, status=0):
        measurement = {"op": "start.add", "dtype": "float32", "shape": "N=9", "date": "today"}
        rows = [{"rung": rung, "median_us": us}]
        monkeypatch.setattr(timings.bench, "bench", lambda *_: [{**measurement, "rows": rows}])
        assert main(["bench", "start.add", "--save", str(file)]) == status
        return capsys.readouterr()

    monkeypatch.setattr(timings, "open_device", lambda name: FakeGpu())
    bench(4.0, "mine.cu")
    bench(5.0, "3")
    out = bench(3.0, "mine.cu").out
    assert "start.add mine.cu, N=9, float32: 0.750 of the 4.00 us before" in out
    (measurement,) = results.load(file)["measurements"]
    assert {row["rung"]: row["median_us"] for row in measurement["rows"]} == {"3": 5, "mine.cu": 3}
    monkeypatch.setattr(FakeGpu, "name", "Fake 9001")
    assert "holds times on Fake 9000" in bench(3.0, "3", status=2).err


def test_a_shell_completes_ops_and_rungs(capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    words = "COMP_WORDS=(kernel-ladder show start.sum ''); COMP_CWORD=3; _shtab_kernel_ladder"
    command = ["bash", "-c", f'{script}\n{words}; echo "${{COMPREPLY[@]}}"']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[:6] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_the_committed_pages_show_what_the_kernels_and_results_say(capsys):
    assert main(["docs", "--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("chekc gelu", "did you mean check?"),
        ("climb", "'climb'"),
        ("docs --chekc", "did you mean --check?"),
        ("--verison", "did you mean --version?"),
        ("list nosuch.op", "'nosuch.op'"),
        ("show layernorm", "layernorm.forward, layernorm.backward"),
        ("show layernorm.forwrd 1", "did you mean layernorm.forward"),
        ("show layernorm.forward", "0 to 11"),
        ("show layernorm.forward 77", "'77'"),
        ("show layernorm.forward ²", "'²'"),
        ("show layernorm.forward no/such.cu", "no/such.cu: no such file"),
        (f"diff layernorm.forward {PLANTED}", f"ladder diff layernorm.forward 1 {PLANTED}"),
        ("diff layernorm.forward 1 2 --context -1", "--context: '-1'"),
        ("check no/such.cu", "no/such.cu: no such file"),
        (f"check {PLANTED}", "--reference"),
        ("lint layernorm.forward 77", "'77'"),
        ("check layernorm.forward ''", "an argument is empty"),
        ("check layernorm.forward mine.cu --device emulated", "mine.cu: no such file"),
        ("check layernorm.forward mine.cu --seconds nan", "--seconds: 'nan'"),
        ("check layernorm.forward 1 --device tpu", "'tpu'"),
        ("check layernorm.forward 1 --device emulatd", "did you mean emulated?"),
        ("check layernorm.forward 1 --device cpu", "device cpu"),
        ("check gelu.forward 1 --device cpu --coverage", "--coverage"),
        ("check x --dtype fp8", "--dtype: 'fp8'"),
        ("check x --shape N=a", "--shape: 'N=a'"),
        ("check x --shape N=4,N=5", "--shape: 'N=4,N=5'"),
        ("check attention.forward 1 --device emulated --shape B=1,T=3,C=5,NH=2", "C % NH == 0"),
        ("check layernorm.forward 3 --device emulated --shape N=99999999,C=99999999", "GiB"),
        ("trace layernorm.forward 3 --shape N=99999999,C=99999999", "GiB"),
        ("check layernorm.forward 3 --shape N=3000000000,C=1", "is at least 1 and below 2^31"),
        ("check layernorm.forward 3 --shape N=3,V=1", "its dimensions are N, C; write e.g. N="),
        ("trace layernorm.forward 3 --timeline run.xyz", "run.xyz: its name must end in .svg"),
        ("bench --device cpu", "--all"),
        ("bench --save layernorm", "ops before --save"),
        ("bench layernorm --device emulated", "about a GPU"),
        ("bench relu.forward --device emulated --define BLOCK=32", "--rung"),
        ("bench relu.forward --device emulated --rung 1 --define BLOCK=x", "--define BLOCK=x"),
        ("bench relu.forward --device emulated --rung 1 --define WIDTH=2", "no constant WIDTH"),
        ("pick layernorm.forward --device emulated", "about a GPU"),
        ("latency --device emulated", "doc/latency.md"),
        ("trace layernorm.forward 0", "no kernel"),
        ("trace layernorm.forward 5 --shape N=4,C=5", "C % vector == 0, and here C = 5"),
        ("sass layernorm.forward 3 --arch hopper", "'hopper'"),
        ("isa matmul.forward cublas", "no kernel"),
        ("export matmul_relu.forward", "matmul_relu.forward has the rungs"),
        ("compile", "what to compile"),
        ("compile gelu --arch gfx1", "'gfx1'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(arguments, named, capsys):
    assert main(shlex.split(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ladder: ") and named in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "first"),
    [("show layernorm.forward 3", "// layernorm forward, rung 3"), ("list", "adamw.update: ")],
)
def test_a_reader_that_leaves_ends_it_quietly(arguments, first):
    command = f"set -o pipefail; {sys.executable} -m ladder {arguments} | head -1"
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(first)
    assert done.stderr == "" and done.returncode == 0


@pytest.mark.parametrize("program", ["ladder", "trainer"])
def test_a_python_without_the_packages_is_told_which_one_has_them(program):
    bare = [
        sys.executable,
        "-S",
        "-m",
        program,
        *(["list"] if program == "ladder" else ["-x", "1"]),
    ]
    done = subprocess.run(bare, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "make setup" in done.stderr
    assert done.stderr.count("\n") == 1
