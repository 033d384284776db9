"""The report on the machine: every problem with its remedy, and what runs."""

from ladder.core.common.install import Finding
from trainer.commands import doctor


def test_the_report_runs_here_and_names_what_runs(capsys):
    assert doctor.main([]) == 0
    report = capsys.readouterr().out
    for what in ("Python", "NumPy", "CPU", "memory", "disk", "C++ compiler", "PyTorch"):
        assert what in report
    assert "--device cpu " in report


def test_slow_products_are_no_fault_of_numpy_where_other_programs_compute(monkeypatch):
    monkeypatch.setattr(doctor, "measured_roof", lambda *device: 1e9)
    for load, remedy in ((0.5, "force-reinstall numpy"), (4096.0, "4096 programs")):
        monkeypatch.setattr(doctor.os, "getloadavg", lambda load=load: (load, load, load))
        assert remedy in doctor.numpy().remedy


def test_data_on_disk_is_found_and_missing_data_has_a_fallback(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("text")
    text, tokens, weights = doctor.data(tmp_path)
    assert text.remedy is None
    assert "byte tokenizer" in tokens.remedy
    assert "random weights" in weights.remedy


def test_the_verdict_follows_from_what_is_missing():
    fine = [Finding(what, "yes") for what in ("C++ compiler", "kernel cache", "GPU", "CuPy")]
    assert not any(lacks for *_, lacks in doctor.verdict(fine))
    broken = [*fine, Finding("CuPy", "none", "install it"), Finding("C++ compiler", "none", "x")]
    broken.append(Finding("AMD compiler", "none", "pip install it"))
    lacks = {device: lacks for device, _, lacks in doctor.verdict(broken)}
    assert (lacks["cpu"], lacks["emulated"]) == ([], ["C++ compiler"])
    assert (lacks["isa:ARCH"], lacks["cuda"]) == (["AMD compiler"], ["CuPy"])
    no_amd = [*fine, Finding("AMD driver", "none", "only --device hip needs one")]
    assert doctor.verdict(no_amd)[-1][::2] == ("hip", ["AMD driver"])
