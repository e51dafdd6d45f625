import pytest

from foredraft.errors import MeasurementError
from foredraft.measure.serve_process import ServerProcess


def test_server_that_ends_before_it_listens_is_told_with_its_last_lines():
    with (
        pytest.raises(MeasurementError, match="ended with 2") as caught,
        ServerProcess(["serve", "-m", "x", "--port", "magic"]),
    ):
        pass
    assert "invalid int value: 'magic'" in str(caught.value)
