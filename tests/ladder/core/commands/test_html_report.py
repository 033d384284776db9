"""`check --report`: one page that joins all that is known of a kernel, and trusts nothing of it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ladder.__main__ import main
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.device.cuda import compiler, sass
from tests.ladder.core.verify.test_reference_file import KERNEL, RMSNORM

pytestmark = pytest.mark.emulator


def checked(status, files, *words):
    """The page of a check that ends with a status; the files are written here."""
    for name, text in files.items():
        Path(name).write_text(text)
    assert main(["check", *words, "--report", "report.html"]) == status
    page = Path("report.html").read_text()
    assert page.count("<h2>") == 5
    return page


def test_a_race_of_a_kernel_with_a_reference_is_marked_at_its_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    racy = KERNEL.replace("    __syncthreads();\n    }", "    }")
    files, words = {"ref.py": RMSNORM, "mine.cu": racy}, ["--reference", "ref.py"]
    page = checked(1, files, "mine.cu", *words, "--shape", "N=2,C=33")
    first, other = re.findall(r'<tr class="marked "><td>1\d<td><td> +(.*?)<td>', page)
    assert "+= partial" in first and "float scale" in other and "</figure><figure>" in page
    assert re.search(r'<td>write partial \(shared\).*\n<tr class="note"><td><td><td>race ', page)
    assert "--unconfined" in page and "<td>N=2 C=33, float32<td>660<td><td>4," in page


def test_a_rung_has_its_counts_its_machine_code_and_the_times_of_this_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compiler, "compile_cubin", lambda *_: None)
    monkeypatch.setattr(compiler, "resources", lambda _: {"start_add": "9 registers"})
    monkeypatch.setattr(sass, "instructions", lambda *_: [sass.Instruction("", "LDG.E R0", 20)])
    row = {"code": code_identity(find_rung("start.add", "1")), "median_us": 1000.0}
    one = {"op": "start.add", "dtype": "float32", "shape": "N=1000", "dims": {"N": 1000}}
    one |= {"roof": {"copy_gbps": 1, "matrix_tflops": None}, "rows": [row, {**row, "code": ""}]}
    times = {"times.json": json.dumps({"device": {"gpu": "A card"}, "measurements": [one]})}
    words = "--shape", "N=1000", "--times", "times.json", "--at-most", "sectors=9"
    page = checked(1, times, "start.add", "1", *words)
    assert re.search(r'"over"><td>20<td>1<td> +c\[i\] = .*<td>read a<td>4<td>32<td>31<td>15', page)
    assert "start_add: 9 registers" in page and '<span class="cyan">          LDG.E' in page
    assert page.count("<td>A card") == 1 and ", 1% " in page and ">failed</" in page


def test_what_a_strangers_file_says_is_text_and_the_page_loads_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = "</title></pre></style><script src='https://evil.example/a.js'></script>$name &lt;"
    text = KERNEL.replace("one block per row", bad).replace("* weight[i];", f"+ 1; // {bad}")
    monkeypatch.setattr(compiler, "compile_cubin", lambda *_: find("<b>NVRTC"))
    name, words = "<img src=x onerror=alert(1)>.cu", ["--shape", "N=2,C=33", "--unconfined"]
    page = checked(1, {name: text, "<b>.py": RMSNORM}, name, "--reference", "<b>.py", *words)
    parts, parser = [], HTMLParser()
    parser.handle_starttag = lambda tag, pairs: parts.extend([tag, *(f"{k}=" for k, _ in pairs)])
    parser.handle_data = parts.append
    parser.feed(page)
    assert sum(bad in text for text in parts) >= 3
    assert f"{name}: " in parts and any("'<b>NVRTC'" in text for text in parts)
    assert not {"script", "img", "b", "link", "iframe", "src=", "href=", "style="} & {*parts}
    assert "default-src 'none'; style-src 'unsafe-inline'" in page and "scheme: dark" in page
