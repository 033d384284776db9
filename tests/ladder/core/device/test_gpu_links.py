"""What doctor says of the links between several GPUs."""

from ladder.core.device.cuda.installation import links

FOUR = {
    (0, 1): "NVLink (4 links)",
    (0, 2): "PCIe and the CPU",
    (1, 2): "the interconnect between CPUs",
}


def test_links_of_one_kind_are_told_in_short():
    finding = links({(0, 1): "NVLink (18 links)"}, True)
    assert finding.found == "all by NVLink (18 links); each reads the others' memory (P2P)"
    assert finding.remedy is None


def test_gpus_that_cannot_read_each_others_memory_have_a_remark():
    finding = links(FOUR, False)
    assert "0-2 PCIe and the CPU, " in finding.found
    assert "NCCL" in finding.remedy
    assert "unknown" in links({}, True).found
