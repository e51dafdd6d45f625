import pytest
from tiny import write_tiny

from foredraft.errors import MeasurementError
from foredraft.measure.probe import peak_bytes, probe


def test_fresh_process_says_how_long_loading_took_and_what_it_held(tmp_path):
    model = write_tiny(tmp_path / "tiny.gguf", "llama")
    result = probe(model, 1, 128, fill=True)
    assert result.load_s > 0
    assert result.peak_bytes > 1 << 20


def test_process_that_fails_is_told_with_its_reason(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(MeasurementError, match=r"ended with 1: .*broken\.gguf"):
        probe(path, 1, 128, fill=False)


def test_peak_is_the_high_water_mark():
    assert peak_bytes("VmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t  100 kB\n") == 123 * 1024
    with pytest.raises(MeasurementError, match="VmHWM"):
        peak_bytes("VmRSS: 1 kB\n")
