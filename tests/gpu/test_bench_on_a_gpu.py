"""The benchmark of a GPU, in small."""

import bench_gpu
import pytest
import torch


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    sizes = {"BATCHES": (64, 128), "GALLERY": 2000, "LONGEST": 0.01, "LARGE": ("rll", "h_ap")}
    sizes |= {"SOP": (2000, (300, 12)), "INATURALIST": (2000, (100, 50, 20, 10, 5, 4, 3))}
    for name, value in sizes.items():
        monkeypatch.setattr(bench_gpu, name, value)
    if device == "cpu":
        monkeypatch.setattr(bench_gpu, "DEVICE", torch.device("cpu"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
        for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, lambda: 0)


@pytest.mark.usefixtures("small")
def test_all_parts_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench_gpu.py"])
    bench_gpu.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("rll ")] == ["64", "128"]
    assert [line for line in lines if line.startswith("all ranking metrics, seven levels")]
    assert lines[-1].startswith("2,000 images: recall@K, MAP@R and R-precision: ")
