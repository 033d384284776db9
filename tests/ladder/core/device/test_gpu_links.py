"""What doctor says of the links between several GPUs, from what nvidia-smi prints."""

from ladder.core.device.cuda.installation import link_names, links

FOUR = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPHB\tSYS\t0-31\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tPHB\tSYS\t X \tNV4\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV4\t X \t32-63\t1\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
TWO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n"


def test_each_pair_of_gpus_has_its_link():
    assert link_names(FOUR) == {
        (0, 1): "NVLink (4 links)",
        (0, 2): "PCIe and the CPU",
        (1, 2): "the interconnect between CPUs",
        (0, 3): "the interconnect between CPUs",
        (1, 3): "the interconnect between CPUs",
        (2, 3): "NVLink (4 links)",
    }


def test_links_of_one_kind_are_told_in_short():
    finding = links(TWO, True)
    assert finding.found == "all by NVLink (18 links); each reads the others' memory (P2P)"
    assert finding.remedy is None


def test_gpus_that_cannot_read_each_others_memory_have_a_remark():
    finding = links(FOUR, False)
    assert "0-2 PCIe and the CPU, " in finding.found
    assert "NCCL copies through the host's memory" in finding.remedy
    assert links("", True).found.startswith("unknown;")
