"""The doctor's findings on torch's kernels in programs for CPUs."""

from jaxsr.doctor.cpu_kernels import check_cpu_kernels
from jaxsr.interop.cpu_kernels import panel_product


def test_both_convolutions_are_timed_and_agree(monkeypatch):
    monkeypatch.delenv("JAXSR_CPU_KERNELS", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    finding, of_onednn, of_products = check_cpu_kernels()
    assert finding.status == "ok"
    assert finding.detail.startswith("on, ") and "XLA's in" in finding.detail
    assert of_onednn.status == "ok" and of_onednn.detail.endswith("called directly")
    assert of_products.status == "ok" and "largest value" in of_products.detail


def test_products_without_llvmlite_are_named(monkeypatch):
    monkeypatch.setattr(panel_product, "available", lambda: False)
    _, _, finding, *_ = check_cpu_kernels()
    assert finding.status == "note" and "[cpu]'" in str(finding.advice)


def test_onednn_called_by_torch_is_named(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "torch")
    _, finding, *_ = check_cpu_kernels()
    assert finding.subject == "oneDNN" and finding.status == "note"
    assert finding.advice == "unset JAXSR_CPU_KERNELS"


def test_spinning_threads_are_named(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    *_, finding = check_cpu_kernels()
    assert finding.subject == "torch's idle threads" and finding.status == "note"
    assert "OMP_WAIT_POLICY=PASSIVE" in str(finding.advice)


def test_switched_off(monkeypatch):
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    (finding,) = check_cpu_kernels()
    assert finding.status == "note" and finding.detail == "off: JAXSR_CPU_KERNELS=xla"
    assert finding.advice == "unset JAXSR_CPU_KERNELS for torch's kernels"
