from __future__ import annotations

import torch

from wdae.runtime.device import fast_arithmetic

CUDNN = torch.backends.cudnn


def settings() -> tuple[str, bool, bool]:
    return torch.get_float32_matmul_precision(), CUDNN.allow_tf32, CUDNN.benchmark


def test_fast_arithmetic_ends_with_its_block() -> None:
    before = settings()
    with fast_arithmetic(torch.device("cpu")):
        assert settings() == before
    with fast_arithmetic(torch.device("cuda")):
        assert settings() == ("high", True, True)
        with fast_arithmetic(torch.device("cuda")):
            pass
        assert settings() == ("high", True, True)
    assert settings() == before
    assert before[0] == "highest"
    with fast_arithmetic(torch.device("cuda")):  # called without a block it stays until it is taken back
        taken_back = fast_arithmetic(torch.device("cuda"))
        assert settings() == ("high", True, True)
        taken_back.close()
    assert settings() == before
